package wireguard_test

import (
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/wireguard"
)

// The tunnel talks to wireguard-go over loopback. Whoever begins, packets get through.
func TestTalksToWireguardGo(t *testing.T) {
	for _, libraryBegins := range []bool{true, false} {
		t.Run(fmt.Sprintf("library begins %v", libraryBegins), func(t *testing.T) {
			socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				t.Fatal(err)
			}
			defer socket.Close()
			ours, theirs := newKey(t), newKey(t)
			library, channel := newLibraryDevice(t, theirs, ours.Public(), socket.LocalAddr().String())
			defer library.Close()
			tunnel := wireguard.New(ours, rand.Reader, 1420, time.Now())
			peer, err := tunnel.AddPeer(theirs.Public(), nil)
			if err != nil {
				t.Fatal(err)
			}
			talk(t, tunnel, peer, socket, channel, libraryPort(t, library), libraryBegins)
		})
	}
}

func newKey(t *testing.T) wireguard.PrivateKey {
	key, err := wireguard.NewPrivateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newLibraryDevice(t *testing.T, key wireguard.PrivateKey, peer wireguard.PublicKey, endpoint string) (*device.Device, *tuntest.ChannelTUN) {
	channel := tuntest.NewChannelTUN()
	library := device.NewDevice(channel.TUN(), conn.NewDefaultBind(), device.NewLogger(device.LogLevelError, "wireguard-go: "))
	configuration := "private_key=" + key.Hex() + "\nlisten_port=0\npublic_key=" + peer.Hex() +
		"\nendpoint=" + endpoint + "\nallowed_ip=11.0.0.0/8\n"
	if err := library.IpcSet(configuration); err != nil {
		t.Fatal(err)
	}
	if err := library.Up(); err != nil {
		t.Fatal(err)
	}
	return library, channel
}

func libraryPort(t *testing.T, library *device.Device) *net.UDPAddr {
	text, err := library.IpcGet()
	if err != nil {
		t.Fatal(err)
	}
	port := 0
	for _, line := range splitLines(text) {
		fmt.Sscanf(line, "listen_port=%d", &port)
	}
	return &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}
}

func splitLines(text string) (lines []string) {
	start := 0
	for i, r := range text {
		if r == '\n' {
			lines = append(lines, text[start:i])
			start = i + 1
		}
	}
	return lines
}

// talk sends a ping in each direction until both have arrived.
func talk(t *testing.T, tunnel *wireguard.Tunnel, peer *wireguard.Peer, socket *net.UDPConn, channel *tuntest.ChannelTUN, library *net.UDPAddr, libraryBegins bool) {
	node, server := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("11.0.0.1")
	toServer, toNode := tuntest.Ping(server, node), tuntest.Ping(node, server)
	deadline := time.Now().Add(time.Minute)
	if libraryBegins {
		channel.Outbound <- toServer
	}
	ourArrived, theirArrived := false, false
	buffer := make([]byte, 2048)
	for !ourArrived || !theirArrived {
		if time.Now().After(deadline) {
			t.Fatalf("packets to us arrived: %v, to the library: %v", theirArrived, ourArrived)
		}
		if !ourArrived {
			sealed := make([]byte, 2048)
			n := copy(sealed[wireguard.HeaderSize:], toNode)
			if datagram := tunnel.Seal(peer, sealed, n, time.Now()); datagram != nil {
				socket.WriteToUDP(datagram, library)
				if !libraryBegins && !theirArrived {
					channel.Outbound <- toServer
				}
			} else if !libraryBegins {
				tunnel.Tick(time.Now(), 1, func(d wireguard.Datagram) { socket.WriteToUDP(d.Data, library) })
			}
		}
		socket.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if n, from, err := socket.ReadFromUDP(buffer); err == nil {
			theirArrived = receive(t, tunnel, socket, buffer[:n], from, toServer) || theirArrived
		} else if !os.IsTimeout(err) {
			t.Fatal(err)
		}
		select {
		case packet := <-channel.Inbound:
			ourArrived = string(packet) == string(toNode) || ourArrived
		default:
		}
	}
}

// receive is true if a datagram contained the wanted packet.
func receive(t *testing.T, tunnel *wireguard.Tunnel, socket *net.UDPConn, datagram []byte, from *net.UDPAddr, want []byte) bool {
	if wireguard.IsTransport(datagram) {
		peer, packet := tunnel.Open(datagram, time.Now())
		if peer == nil {
			t.Error("a datagram of the library was dropped")
		}
		return len(packet) >= len(want) && string(packet[:len(want)]) == string(want)
	}
	outcome := tunnel.Handshake(datagram, []byte(from.String()), false, time.Now())
	if outcome.Reply != nil {
		socket.WriteToUDP(outcome.Reply, from)
	}
	return false
}
