package ipv4gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/masquerade"
	"github.com/k8s-1m/k8s-1m/internal/network/netns"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

const (
	connectors = 8  // connections that are opened at a time
	window     = 32 // datagrams that are under way
	payload    = 1200
	lostAfter  = 100 * time.Millisecond
	warmup     = 200 * time.Millisecond
)

// Path is a way from the node to the server.
type Path struct {
	Name string
	// Skipped says why the path was not measured.
	Skipped string
	// Connections is how many TCP connections were opened, used and closed in a second.
	Connections float64
	// PacketCPU is the CPU time of all programs for a packet of 1,200 bytes, those of the node and the server
	// included; Packets is how many packets it was measured with.
	PacketCPU time.Duration
	Packets   int
}

// way sets a path up and returns the address of the server on it. Its programs are counted.
type way struct {
	name  string
	setUp func(*lab, context.Context) (address string, err error)
}

var errNotInstalled = errors.New("not installed")

func ways() []way {
	return []way{
		{"routing without translation", (*lab).plain},
		{"kernel masquerade", (*lab).kernel},
		{"tayga and kernel masquerade", (*lab).tayga},
		{"network-gateway, NAT64", (*lab).translated},
		{"network-gateway, masquerade", (*lab).masqueraded},
	}
}

// Paths measures all ways from the node to the server, each in a lab of its own.
func Paths(ctx context.Context, o Options) ([]Path, error) {
	var all []Path
	for _, w := range ways() {
		path := Path{Name: w.name}
		err := withLab(o, func(l *lab) error {
			if err := l.echo(); err != nil {
				return err
			}
			host, err := w.setUp(l, ctx)
			if err != nil {
				return err
			}
			return l.measure(ctx, net.JoinHostPort(host, "7"), &path)
		})
		if errors.Is(err, errNotInstalled) {
			path.Skipped, err = err.Error(), nil
		}
		if err != nil {
			return all, fmt.Errorf("%s: %w", w.name, err)
		}
		all = append(all, path)
	}
	return all, nil
}

// routeIPv4 routes IPv4 of the node to the gateway, without a tunnel.
func (l *lab) routeIPv4() error {
	return l.node.AddRoute(netns.Route{To: netip.MustParsePrefix("11.0.0.0/24"), Via: netip.MustParseAddr("172.30.0.1"), Link: "eth0"})
}

func (l *lab) plain(context.Context) (string, error) { return serverAddress, l.routeIPv4() }

func (l *lab) kernel(context.Context) (string, error) {
	rules := masquerade.Gateway{Link: "none", Sources: []netip.Prefix{netip.MustParsePrefix("172.30.0.0/24")}}
	return serverAddress, errors.Join(l.routeIPv4(), l.gateway.Do(rules.Apply))
}

func (l *lab) tayga(ctx context.Context) (string, error) {
	program, err := exec.LookPath("tayga")
	if err != nil {
		return "", fmt.Errorf("tayga is %w; in Debian: apt-get install tayga", errNotInstalled)
	}
	configuration := fmt.Sprintf("tun-device nat64\nipv4-addr 192.168.255.1\nipv6-addr 2001:db8:fe::1\nprefix %s/96\ndynamic-pool %s\ndata-dir %s\n", prefix, taygaPool, l.directory)
	if err := os.WriteFile(l.file("tayga.conf"), []byte(configuration), 0o644); err != nil {
		return "", err
	}
	if output, err := l.gateway.Run(ctx, program, "--mktun", "-c", l.file("tayga.conf")); err != nil {
		return "", fmt.Errorf("%w: %s", err, output)
	}
	rules := masquerade.Gateway{Link: "nat64", Sources: []netip.Prefix{netip.MustParsePrefix(taygaPool)}}
	err = errors.Join(
		l.gateway.Up("nat64"),
		l.gateway.AddRoute(netns.Route{To: netip.MustParsePrefix(prefix + "/96"), Link: "nat64"}),
		l.gateway.AddRoute(netns.Route{To: netip.MustParsePrefix(taygaPool), Link: "nat64"}),
		l.node.AddRoute(netns.Route{To: netip.MustParsePrefix(prefix + "/96"), Via: netip.MustParseAddr(gatewayAddress), Link: "eth0"}),
		l.gateway.Do(rules.Apply),
	)
	if err != nil {
		return "", err
	}
	_, err = l.start(ctx, l.gateway, program, "--nodetach", "-c", l.file("tayga.conf"))
	return prefix + serverAddress, err
}

// connected connects the node with network-gateway.
func (l *lab) connected(ctx context.Context) error {
	if err := l.writeNodes("node", nodeAddress+"/128"); err != nil {
		return err
	}
	if _, err := l.startGateway(ctx); err != nil {
		return err
	}
	if _, err := l.join(ctx, "node"); err != nil {
		return err
	}
	return l.wait(ctx, "the node is connected", func() error { return l.peer("node", true) })
}

func (l *lab) translated(ctx context.Context) (string, error) {
	return prefix + serverAddress, l.connected(ctx)
}

func (l *lab) masqueraded(ctx context.Context) (string, error) {
	return serverAddress, l.connected(ctx)
}

// measure measures a path that has been set up.
func (l *lab) measure(ctx context.Context, address string, path *Path) error {
	ready := func() error {
		c, err := l.node.Dial("tcp", address, time.Second)
		if err == nil {
			err = c.Close()
		}
		return err
	}
	if err := l.wait(ctx, "a connection", ready); err != nil {
		return err
	}
	var err error
	if path.Connections, err = l.connections(ctx, address); err != nil {
		return err
	}
	path.PacketCPU, path.Packets, err = l.packetCPU(ctx, address)
	return err
}

// connections opens, uses and resets connections and returns how many a second.
func (l *lab) connections(ctx context.Context, address string) (float64, error) {
	var count, failed atomic.Int64
	var wait sync.WaitGroup
	begin := time.Now()
	for range connectors {
		wait.Go(func() {
			// A thread stays in the namespace for all connections.
			err := l.node.Do(func() error {
				for time.Since(begin) < l.options.Duration && ctx.Err() == nil {
					if err := useOnce(address, l.options.Timeout); err != nil {
						failed.Add(1)
						continue
					}
					count.Add(1)
				}
				return nil
			})
			if err != nil {
				failed.Add(1)
			}
		})
	}
	wait.Wait()
	if failed.Load() > 0 {
		return 0, fmt.Errorf("%d of %d connections failed", failed.Load(), failed.Load()+count.Load())
	}
	return float64(count.Load()) / time.Since(begin).Seconds(), ctx.Err()
}

func useOnce(address string, timeout time.Duration) error {
	c, err := net.DialTimeout("tcp", address, timeout)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.(*net.TCPConn).SetLinger(0) // no port of the node must wait
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1))
	return err
}

// packetCPU sends datagrams to the echo server, a window at a time, and returns the CPU time for a packet.
func (l *lab) packetCPU(ctx context.Context, address string) (time.Duration, int, error) {
	c, err := l.node.Dial("udp", address, l.options.Timeout)
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	if _, err := exchange(ctx, c, warmup); err != nil {
		return 0, 0, err
	}
	before, err := l.cpu()
	if err != nil {
		return 0, 0, err
	}
	packets, err := exchange(ctx, c, l.options.Duration)
	if err != nil {
		return 0, 0, err
	}
	after, err := l.cpu()
	if err != nil || packets == 0 {
		return 0, 0, errors.Join(err, errors.New("no packet came back"))
	}
	return (after - before) / time.Duration(packets), packets, nil
}

// exchange returns how many packets passed, in both directions together.
func exchange(ctx context.Context, c net.Conn, duration time.Duration) (packets int, err error) {
	out, in := make([]byte, payload), make([]byte, 2048)
	for begin := time.Now(); time.Since(begin) < duration && ctx.Err() == nil; {
		for range window {
			if _, err := c.Write(out); err != nil {
				return packets, err
			}
		}
		if err := c.SetReadDeadline(time.Now().Add(lostAfter)); err != nil {
			return packets, err
		}
		for range window {
			if _, err := c.Read(in); errors.Is(err, os.ErrDeadlineExceeded) {
				break
			} else if err != nil {
				return packets, err
			}
			packets += 2
		}
	}
	return packets, ctx.Err()
}

// cpu is the CPU time of this process, in which the kernel also forwards, and of the programs of the lab.
func (l *lab) cpu() (total time.Duration, err error) {
	total = process.OwnCPUTime()
	for _, cmd := range l.programs {
		used, err := process.CPUTime(cmd.Process.Pid)
		if err != nil {
			return 0, err
		}
		total += used
	}
	return total, nil
}
