package peerproxy

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

// patience bounds what takes milliseconds on a machine without other work.
const patience = time.Minute

// notAtAll is how long a test waits for something that must not happen.
const notAtAll = 200 * time.Millisecond

// fixture is a proxy in front of store-1, with a connection of this process, which plays the member store-2.
type fixture struct {
	proxy  *Proxy
	config clusterdir.Config
	// client is the end of the connection at store-2, and server that at store-1.
	client, server net.Conn
}

func start(t *testing.T) fixture {
	t.Helper()
	return startWith(t, func() map[string]int { return map[string]int{"store-2": os.Getpid()} })
}

// startWith is [start] with another source of process IDs.
func startWith(t *testing.T, pids func() map[string]int) fixture {
	t.Helper()
	settings := clusterdir.DefaultSettings()
	settings.StoreReplicas = 3
	f := fixture{config: clusterdir.NewConfig("test", settings)}
	for _, member := range settings.StoreMembers(clusterdir.MainStore) {
		f.config.Ports[clusterdir.StorePeerPort(member)] = testcluster.FreePort(t)
		f.config.Ports[clusterdir.StorePeerListenPort(member)] = testcluster.FreePort(t)
	}
	listener, err := net.Listen("tcp", f.config.Ports.Address(clusterdir.StorePeerListenPort("store-1")))
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	f.proxy, err = Start(f.config, pids)
	must(t, err)
	t.Cleanup(f.proxy.Close)
	f.client, err = net.Dial("tcp", f.config.Ports.Address(clusterdir.StorePeerPort("store-1")))
	must(t, err)
	f.server, err = listener.Accept()
	must(t, err)
	t.Cleanup(func() { _, _ = f.client.Close(), f.server.Close() })
	return f
}

// arrives reports whether a byte arrives within a time.
func arrives(t *testing.T, from, to net.Conn, within time.Duration) bool {
	t.Helper()
	_, err := from.Write([]byte("x"))
	must(t, err)
	must(t, to.SetReadDeadline(time.Now().Add(within)))
	_, err = to.Read(make([]byte, 1))
	return err == nil
}

func TestMemberIsCutOff(t *testing.T) {
	for _, member := range []string{"store-1", "store-2"} {
		t.Run(member, func(t *testing.T) {
			f := start(t)
			if !arrives(t, f.client, f.server, patience) || !arrives(t, f.server, f.client, patience) {
				t.Fatal("no data arrives although no member is cut off")
			}
			f.proxy.Cut("store-3", time.Hour)
			if !arrives(t, f.client, f.server, patience) {
				t.Fatal("no data arrives while another member is cut off")
			}
			f.proxy.Cut(member, time.Hour)
			if arrives(t, f.client, f.server, notAtAll) || arrives(t, f.server, f.client, notAtAll) {
				t.Fatalf("data arrives although %s is cut off", member)
			}
			f.proxy.Cut(member, 0)
			if !arrives(t, f.client, f.server, patience) || !arrives(t, f.server, f.client, patience) {
				t.Fatal("no data arrives after the partition has ended")
			}
		})
	}
}

// TestUnknownProcessIsCutOff checks connections of a member whose process becomes known after it has connected, as at a start.
func TestUnknownProcessIsCutOff(t *testing.T) {
	var known atomic.Pointer[map[string]int]
	known.Store(&map[string]int{})
	f := startWith(t, func() map[string]int { return *known.Load() })
	if !arrives(t, f.client, f.server, patience) {
		t.Fatal("no data arrives although no member is cut off")
	}
	f.proxy.Cut("store-3", time.Hour)
	if arrives(t, f.client, f.server, notAtAll) {
		t.Fatal("data of an unknown process arrives while a member is cut off")
	}
	known.Store(&map[string]int{"store-2": os.Getpid()})
	must(t, f.server.SetReadDeadline(time.Now().Add(patience)))
	if _, err := io.ReadFull(f.server, make([]byte, 1)); err != nil {
		t.Fatalf("the data of store-2 does not arrive when its process is known: %v", err)
	}
	f.proxy.Cut("store-2", time.Hour)
	if arrives(t, f.client, f.server, notAtAll) || arrives(t, f.server, f.client, notAtAll) {
		t.Fatal("data arrives although store-2 is cut off")
	}
}

// TestClosedProxyFreesThePorts checks that the supervisor can take the ports of a proxy that was closed before.
func TestClosedProxyFreesThePorts(t *testing.T) {
	f := start(t)
	if _, err := Start(f.config, nil); err == nil {
		t.Fatal("two proxies have the same ports, want an error")
	}
	f.proxy.Close()
	second, err := Start(f.config, func() map[string]int { return nil })
	must(t, err)
	second.Close()
	must(t, f.server.SetReadDeadline(time.Now().Add(patience)))
	if _, err := f.server.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("reading from a connection of the closed proxy: %v, want its end", err)
	}
}

func TestRequestsOfPartitions(t *testing.T) {
	f := start(t)
	mux := http.NewServeMux()
	mux.Handle(Path, f.proxy.Handler(f.config.Settings))
	server := httptest.NewServer(mux)
	defer server.Close()
	must(t, Request(t.Context(), server.URL, "store-1", time.Hour))
	if !f.proxy.isCut("store-3", "store-1") || f.proxy.isCut("store-2", "store-3") {
		t.Error("after the request, store-1 is not cut off, or another member is")
	}
	must(t, Request(t.Context(), server.URL, "store-1", 0))
	if f.proxy.isCut() {
		t.Error("a request for no time did not end the partition")
	}
	for _, c := range []struct {
		member   string
		duration time.Duration
		want     string
	}{{"store", time.Second, "no such member"}, {"store-1", -time.Second, "not a duration of 0 or more"}} {
		if err := Request(t.Context(), server.URL, c.member, c.duration); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Request() of %s for %v = %v, want %q", c.member, c.duration, err, c.want)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
