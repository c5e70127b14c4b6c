package clusterdir

import (
	"errors"
	"net"
	"testing"
)

func TestPortsStayTheSameWhileFree(t *testing.T) {
	names := DefaultSettings().PortNames()
	first, err := Ports{}.Assign("test", names, nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := first.Assign("test", names, nil)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]string{}
	for _, name := range names {
		if first[name] != again[name] {
			t.Errorf("the free port of %s changed from %d to %d", name, first[name], again[name])
		}
		if other, taken := seen[first[name]]; taken {
			t.Errorf("%s and %s share port %d", name, other, first[name])
		}
		seen[first[name]] = name
	}

	listener, err := net.Listen("tcp", first.Address("kwok"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	moved, err := first.Assign("test", names, nil)
	if err != nil {
		t.Fatal(err)
	}
	if moved["kwok"] == first["kwok"] || moved["store"] != first["store"] {
		t.Errorf("with port %d of kwok in use, Assign returned %v; want another port for kwok only", first["kwok"], moved)
	}
}

func TestRequestedPortInUseIsAnError(t *testing.T) {
	listener, err := net.Listen("tcp", Loopback+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	wanted := map[string]int{"kwok": listener.Addr().(*net.TCPAddr).Port}
	if _, err := (Ports{}).Assign("test", []string{"kwok"}, wanted); !errors.Is(err, ErrPortInUse) {
		t.Errorf("Assign returned %v, want ErrPortInUse", err)
	}
}
