// Package probe finds out whether pods reach each other, and with which addresses: a server that answers each datagram with the
// address of its sender, and clients that ask it.
package probe

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/netns"
)

const (
	// Port is the port of the servers.
	Port = 7777
	// attempt is how long a client waits for an answer before it sends again.
	attempt = time.Second
	// pause is the time before a datagram is sent again that the kernel did not take.
	pause      = 50 * time.Millisecond
	bufferSize = 2048
)

// Serve answers datagrams to an address of a namespace until the result is closed.
func Serve(ns *netns.Namespace, address netip.Addr) (io.Closer, error) {
	var server net.PacketConn
	err := ns.Do(func() (err error) {
		server, err = net.ListenPacket("udp6", netip.AddrPortFrom(address, Port).String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("serve at %s: %w", address, err)
	}
	go answer(server)
	return server, nil
}

func answer(server net.PacketConn) {
	buffer := make([]byte, bufferSize)
	for {
		n, from, err := server.ReadFrom(buffer)
		if err != nil {
			return
		}
		sender := from.(*net.UDPAddr).AddrPort().Addr()
		_, _ = server.WriteTo(append([]byte(sender.String()+" "), buffer[:n]...), from)
	}
}

// Dial opens a socket of a namespace to the server at an address.
func Dial(ns *netns.Namespace, to netip.Addr) (net.Conn, error) {
	return ns.Dial("udp6", netip.AddrPortFrom(to, Port).String(), 0)
}

// Ask sends a text to the server until it answers, and returns the address that the server has seen. It gives up after some time, with
// the last error.
func Ask(client net.Conn, text string, giveUp time.Duration) (seen netip.Addr, err error) {
	buffer := make([]byte, bufferSize)
	for deadline := time.Now().Add(giveUp); time.Now().Before(deadline); {
		if _, err = client.Write([]byte(text)); err == nil {
			_ = client.SetReadDeadline(time.Now().Add(attempt))
			var n int
			if n, err = client.Read(buffer); err == nil {
				sender, _, _ := strings.Cut(string(buffer[:n]), " ")
				return netip.ParseAddr(sender)
			}
		}
		if !os.IsTimeout(err) {
			time.Sleep(pause)
		}
	}
	return seen, err
}

// Reach asks the server at an address once, from a namespace. It returns an error if there is no answer, or if the server has seen
// another address than own.
func Reach(ns *netns.Namespace, own, to netip.Addr, giveUp time.Duration) error {
	client, err := Dial(ns, to)
	if err != nil {
		return err
	}
	defer client.Close()
	seen, err := Ask(client, "hello", giveUp)
	if err == nil && seen != own {
		err = fmt.Errorf("the server has seen %s", seen)
	}
	if err != nil {
		return fmt.Errorf("%s does not reach %s: %w", own, to, err)
	}
	return nil
}
