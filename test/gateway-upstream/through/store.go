package through

import (
	"io"
	"net"
	"strings"
	"sync"
)

// storeURL returns a URL at which the gateway reaches a store. The tests' stores listen at Unix sockets, which the gateway
// does not know: connections are passed on to them until the test ends.
func storeURL(t TB, url string) (string, error) {
	socket, ok := strings.CutPrefix(url, "unix://")
	if !ok {
		return url, nil
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go passOn(client, socket)
		}
	}()
	return "http://" + listener.Addr().String(), nil
}

// passOn copies in both directions until one side ends.
func passOn(client net.Conn, socket string) {
	defer client.Close()
	store, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer store.Close()
	var both sync.WaitGroup
	for _, pair := range [][2]net.Conn{{client, store}, {store, client}} {
		both.Go(func() {
			_, _ = io.Copy(pair[0], pair[1])
			_ = pair[0].Close()
			_ = pair[1].Close()
		})
	}
	both.Wait()
}
