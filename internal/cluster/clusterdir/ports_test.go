package clusterdir

import (
	"errors"
	"net"
	"testing"
)

func TestPortsAreKeptWhileFree(t *testing.T) {
	names := DefaultSettings().PortNames()
	first, err := Ports{}.Assign("test", names, nil)
	if err != nil {
		t.Fatal(err)
	}
	second, err := first.Assign("test", names, nil)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]string{}
	for _, name := range names {
		if first[name] != second[name] {
			t.Errorf("port of %s in the second Assign() = %d, want %d as in the first", name, second[name], first[name])
		}
		if other, exists := seen[first[name]]; exists {
			t.Errorf("%s and %s have port %d, want different ports", name, other, first[name])
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
		t.Errorf("Assign() with port %d in use = %v, want another port of kwok and the same port of the store", first["kwok"], moved)
	}
}

func TestRequestedPortInUseIsAnError(t *testing.T) {
	listener, err := net.Listen("tcp", Loopback+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	requested := map[string]int{"kwok": listener.Addr().(*net.TCPAddr).Port}
	if _, err := (Ports{}).Assign("test", []string{"kwok"}, requested); !errors.Is(err, ErrPortInUse) {
		t.Errorf("Assign() of a port in use = %v, want %v", err, ErrPortInUse)
	}
}
