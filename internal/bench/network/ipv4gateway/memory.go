package ipv4gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/enroll"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/wireguard"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

// MemoryResult is the memory of a gateway in bytes.
type MemoryResult struct {
	Peers int
	// Started is the memory without peers, Registered that after all have registered, Connected that after
	// each has done a handshake and has a connection.
	Started, Registered, Connected int64
}

// registrars is how many nodes register at a time.
const registrars = 8

// Memory connects nodes with a gateway: each registers with a certificate of its own, makes a handshake and
// opens a connection.
func Memory(ctx context.Context, o Options, peers int) (result MemoryResult, err error) {
	result.Peers = peers
	err = withLab(o, func(l *lab) error {
		nodes := make([]string, 0, 2*peers)
		for i := range peers {
			nodes = append(nodes, nodeName(i), netip.PrefixFrom(nodePrefix(i), 96).String())
		}
		if err := l.writeNodes(nodes...); err != nil {
			return err
		}
		cmd, err := l.startGateway(ctx)
		if err != nil {
			return err
		}
		pid := cmd.Process.Pid
		if result.Started, err = residentMemory(ctx, pid); err != nil {
			return err
		}
		swarm := &swarm{lab: l, ends: make([]swarmEnd, peers)}
		if err := swarm.register(ctx); err != nil {
			return err
		}
		if result.Registered, err = residentMemory(ctx, pid); err != nil {
			return err
		}
		if err := swarm.connect(ctx); err != nil {
			return err
		}
		result.Connected, err = residentMemory(ctx, pid)
		return err
	})
	return result, err
}

// residentMemory is the physical memory of a process in bytes, when it is stable.
func residentMemory(ctx context.Context, pid int) (int64, error) {
	id, err := process.Of(pid)
	if err != nil {
		return 0, err
	}
	return id.SettledMemory(ctx)
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

func nodePrefix(i int) netip.Addr {
	return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 1, byte(i >> 16), byte(i >> 8), byte(i)})
}

// swarm is the other end of all tunnels, in this process.
type swarm struct {
	lab  *lab
	ends []swarmEnd
}

type swarmEnd struct {
	tunnel *wireguard.Tunnel
	peer   *wireguard.Peer
}

// register registers all nodes.
func (s *swarm) register(ctx context.Context) error {
	var wait sync.WaitGroup
	var next atomic.Int64
	failed := make(chan error, registrars)
	certificates := make([]tls.Certificate, len(s.ends))
	for i := range certificates {
		var err error
		if certificates[i], err = s.lab.pki.Node(nodeName(i)); err != nil {
			return err
		}
	}
	for range registrars {
		wait.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(s.ends) && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := s.registerOne(i, certificates[i]); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wait.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return ctx.Err()
	}
}

func (s *swarm) registerOne(i int, certificate tls.Certificate) error {
	key, err := wireguard.NewPrivateKey(rand.Reader)
	if err != nil {
		return err
	}
	client := s.lab.node.HTTPClient(s.lab.options.Timeout, &tls.Config{RootCAs: s.lab.pki.Roots(), Certificates: []tls.Certificate{certificate}})
	body, err := json.Marshal(enroll.Request{PublicKey: key.Public().String()})
	if err != nil {
		return err
	}
	answer, err := client.Post("https://["+gatewayAddress+"]:8443"+enroll.Path, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	var response enroll.Response
	if err := json.NewDecoder(answer.Body).Decode(&response); err != nil || answer.StatusCode != http.StatusOK {
		return fmt.Errorf("node %d registers: status %s, %v", i, answer.Status, err)
	}
	public, err := wireguard.ParsePublicKey(response.PublicKey)
	if err != nil {
		return err
	}
	tunnel := wireguard.New(key, rand.Reader, response.MTU, time.Now())
	peer, err := tunnel.AddPeer(public, nil)
	s.ends[i] = swarmEnd{tunnel: tunnel, peer: peer}
	return err
}

// connect makes the handshakes of all nodes, in turn over one socket, and sends a packet to the
// server, which answers.
func (s *swarm) connect(ctx context.Context) error {
	if err := s.lab.echo(); err != nil {
		return err
	}
	c, err := s.lab.node.Dial("udp", "["+gatewayAddress+"]:51820", s.lab.options.Timeout)
	if err != nil {
		return err
	}
	defer c.Close()
	for i := range s.ends {
		if err := s.connectOne(ctx, c, i); err != nil {
			return fmt.Errorf("node %d: %w", i, err)
		}
	}
	return nil
}

// connectOne retries until the answer of the server has arrived.
func (s *swarm) connectOne(ctx context.Context, c net.Conn, i int) error {
	end := s.ends[i]
	end.tunnel.Wake(end.peer, time.Now())
	packet := udpPacket(nodePrefix(i).Next(), netip.MustParseAddr(prefix+serverAddress), 5000, echoPort)
	return s.lab.wait(ctx, "an answer through the tunnel", func() error {
		end.tunnel.Tick(time.Now(), 1, func(d wireguard.Datagram) { _, _ = c.Write(d.Data) }) // sent again if lost
		if err := end.send(c, packet); err != nil {
			return err
		}
		if err := c.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			return err
		}
		for answered := false; !answered; {
			var err error
			if answered, err = end.receive(c, packet); err != nil {
				return err
			}
		}
		return nil
	})
}

// send sends a packet if there are keys.
func (e swarmEnd) send(c net.Conn, packet []byte) error {
	buffer := make([]byte, len(packet)+wireguard.Overhead+16)
	copy(buffer[wireguard.HeaderSize:], packet)
	datagram := e.tunnel.Seal(e.peer, buffer, len(packet), time.Now())
	if datagram == nil {
		return nil
	}
	_, err := c.Write(datagram)
	return err
}

// receive handles a datagram. It is true if that contained a packet.
func (e swarmEnd) receive(c net.Conn, packet []byte) (bool, error) {
	buffer := make([]byte, 2048)
	n, err := c.Read(buffer)
	if err != nil {
		return false, err
	}
	if wireguard.IsTransport(buffer[:n]) {
		peer, answer := e.tunnel.Open(buffer[:n], time.Now())
		return peer != nil && len(answer) > 0, nil
	}
	outcome := e.tunnel.Handshake(buffer[:n], []byte{1}, false, time.Now())
	if outcome.Reply == nil {
		return false, nil
	}
	if _, err := c.Write(outcome.Reply); err != nil {
		return false, err
	}
	return false, e.send(c, packet)
}
