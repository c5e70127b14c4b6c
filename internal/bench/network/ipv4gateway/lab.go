// Package ipv4gateway measures network-gateway in network namespaces, beside the kernel's masquerading and
// tayga: connections a second and CPU for a packet (paths.go), memory for many nodes (memory.go), and the
// time until a node that leaves is gone (leave.go).
package ipv4gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/gatewaytest"
	"github.com/k8s-1m/k8s-1m/internal/network/netns"
)

// Options are the options of all measurements.
type Options struct {
	// Program is network-gateway.
	Program string
	// Duration is that of one measurement of a path.
	Duration time.Duration
	// Timeout bounds the waiting for something that should happen at once.
	Timeout time.Duration
	// Name begins the names of namespaces.
	Name string
}

const (
	nodeAddress    = "2001:db8:ff::2"
	gatewayAddress = "2001:db8:ff::1"
	nodeIPv4       = "172.30.0.2"
	serverAddress  = "11.0.0.1"
	prefix         = "64:ff9b::"
	pool           = "12.0.0.0/24"
	taygaPool      = "192.168.255.0/24"
	metricsAddress = "127.0.0.1:9547"
	unlimited      = "1000000"
)

// lab is a node, a gateway and a server in a row.
type lab struct {
	options               Options
	directory             string
	node, gateway, server *netns.Namespace
	pki                   *gatewaytest.PKI
	programs              []*exec.Cmd
	closers               []io.Closer // of servers in this process
}

// withLab builds a lab, calls use and removes the lab.
func withLab(o Options, use func(*lab) error) (err error) {
	l := &lab{options: o}
	if l.directory, err = os.MkdirTemp("", "k1m-ipv4-gateway-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.remove()) }()
	for name, n := range map[string]**netns.Namespace{"node": &l.node, "gateway": &l.gateway, "server": &l.server} {
		if *n, err = netns.Create(o.Name + "-" + name); err != nil {
			return err
		}
	}
	if err := l.connect(); err != nil {
		return err
	}
	if l.pki, err = gatewaytest.NewPKI(l.directory, net.ParseIP(gatewayAddress)); err != nil {
		return err
	}
	return use(l)
}

func (l *lab) connect() error {
	return errors.Join(
		netns.Veth(netns.End{In: l.node, Name: "eth0"}, netns.End{In: l.gateway, Name: "eth0"}, 0),
		netns.Veth(netns.End{In: l.gateway, Name: "eth1"}, netns.End{In: l.server, Name: "eth0"}, 0),
		l.node.AddAddress("eth0", netip.MustParsePrefix(nodeAddress+"/64")),
		l.node.AddAddress("eth0", netip.MustParsePrefix(nodeIPv4+"/24")),
		l.gateway.AddAddress("eth0", netip.MustParsePrefix(gatewayAddress+"/64")),
		l.gateway.AddAddress("eth0", netip.MustParsePrefix("172.30.0.1/24")),
		l.gateway.AddAddress("eth1", netip.MustParsePrefix("11.0.0.254/24")),
		l.server.AddAddress("eth0", netip.MustParsePrefix(serverAddress+"/24")),
		l.server.AddRoute(netns.Route{To: netip.MustParsePrefix(pool), Via: netip.MustParseAddr("11.0.0.254"), Link: "eth0"}),
		l.server.AddRoute(netns.Route{To: netip.MustParsePrefix("172.30.0.0/24"), Via: netip.MustParseAddr("11.0.0.254"), Link: "eth0"}),
		l.gateway.Sysctl("ipv4/ip_forward", "1"),
		l.gateway.Sysctl("ipv6/conf/all/forwarding", "1"),
	)
}

func (l *lab) remove() error {
	for _, cmd := range l.programs {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = cmd.Wait()                          // its result says only that it was told to end
	}
	var errs []error
	for _, c := range l.closers {
		errs = append(errs, c.Close())
	}
	for _, n := range []*netns.Namespace{l.node, l.gateway, l.server} {
		if n != nil {
			errs = append(errs, n.Delete())
		}
	}
	return errors.Join(append(errs, os.RemoveAll(l.directory))...)
}

func (l *lab) file(name string) string { return filepath.Join(l.directory, name) }

// start starts a program, which ends with the lab.
func (l *lab) start(ctx context.Context, in *netns.Namespace, name string, args ...string) (*exec.Cmd, error) {
	log, err := os.Create(l.file(filepath.Base(name) + strconv.Itoa(len(l.programs)) + ".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := in.Start(cmd); err != nil {
		return nil, err
	}
	l.programs = append(l.programs, cmd)
	return cmd, nil
}

// startGateway starts network-gateway for the nodes of the file "nodes".
func (l *lab) startGateway(ctx context.Context) (*exec.Cmd, error) {
	cmd, err := l.start(ctx, l.gateway, l.options.Program, "serve", "--listen", "["+gatewayAddress+"]:8443",
		"--tls-cert-file", l.file("gateway.crt"), "--tls-private-key-file", l.file("gateway.key"), "--client-ca-file", l.file("ca.crt"),
		"--nodes-file", l.file("nodes"), "--private-key-file", l.file("gateway.wireguard"), "--state-file", "", "--metrics-listen", metricsAddress,
		"--nat64-pool", pool, "--masquerade-range", "10.64.0.0/16",
		"--node-connections", unlimited, "--node-ports", unlimited, "--node-rate", unlimited)
	if err != nil {
		return nil, err
	}
	return cmd, l.wait(ctx, "network-gateway serves", func() error { _, err := l.nodes(); return err })
}

// join connects the node.
func (l *lab) join(ctx context.Context, name string) (*exec.Cmd, error) {
	if err := l.pki.IssueNode(name); err != nil {
		return nil, err
	}
	return l.start(ctx, l.node, l.options.Program, "join", "--gateway", "https://["+gatewayAddress+"]:8443", "--ca-file", l.file("ca.crt"),
		"--cert-file", l.file(name+".crt"), "--key-file", l.file(name+".key"), "--private-key-file", l.file(name+".wireguard"), "--masquerade-pods=false")
}

// writeNodes replaces the file of nodes: name and prefix in turn.
func (l *lab) writeNodes(namesAndPrefixes ...string) error {
	var content strings.Builder
	content.WriteString("[")
	for i := 0; i < len(namesAndPrefixes); i += 2 {
		if i > 0 {
			content.WriteString(",\n")
		}
		fmt.Fprintf(&content, `{"name": %q, "prefixes": [%q]}`, namesAndPrefixes[i], namesAndPrefixes[i+1])
	}
	content.WriteString("]\n")
	if err := os.WriteFile(l.file("nodes.new"), []byte(content.String()), 0o644); err != nil {
		return err
	}
	return os.Rename(l.file("nodes.new"), l.file("nodes"))
}

// wait waits until a condition holds.
func (l *lab) wait(ctx context.Context, what string, condition func() error) error {
	begin := time.Now()
	for {
		err := condition()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(begin) > l.options.Timeout {
			return fmt.Errorf("%s: not within %v: %w%s", what, l.options.Timeout, err, l.logs())
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// logs returns what the programs have printed.
func (l *lab) logs() string {
	var all strings.Builder
	files, _ := filepath.Glob(l.file("*.log")) // the pattern is right
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err == nil && len(content) > 0 {
			fmt.Fprintf(&all, "; %s: %s", filepath.Base(file), strings.TrimSpace(string(content)))
		}
	}
	return all.String()
}

// nodes returns the names of the connected nodes.
func (l *lab) nodes() (map[string]bool, error) {
	response, err := l.gateway.HTTPClient(l.options.Timeout, nil).Get("http://" + metricsAddress + "/nodes")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	var list []struct{ Name string }
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, n := range list {
		names[n.Name] = true
	}
	return names, nil
}
