package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

// The fronts, by the names in tables and charts.
const (
	direct      = "direct"
	haproxy     = "HAProxy"
	kubeGateway = "kube-gateway"
)

const frontTimeout = 30 * time.Second

// front is what clients connect to: the API servers themselves, or a process in front of them.
type front struct {
	name string
	// addresses are host:port. Only direct has several: client i uses the address i modulo their number.
	addresses []string
	// process is nil for direct, and for a gateway that k1m has started.
	process *exec.Cmd
	// id is the process; empty for direct.
	id process.Identity
	// log contains the standard error of the process, and config is its configuration file.
	log, config string
	// page is the URL of the gateway's pages; empty for others.
	page string
}

// address returns the address for the client with this number.
func (f *front) address(client int) string { return f.addresses[client%len(f.addresses)] }

// cpu returns the CPU time of the process; 0 for direct.
func (f *front) cpu() (time.Duration, error) {
	if f.id.PID == 0 {
		return 0, nil
	}
	return process.CPUTime(f.id.PID)
}

// stop kills the process and waits for its end.
func (f *front) stop() {
	if f.process == nil {
		return
	}
	// The errors are ignored: the process may have exited, and Wait reports the signal as an error.
	_ = f.process.Process.Kill()
	_ = f.process.Wait()
}

// target is what a front forwards to.
type target struct {
	// servers are the host:port of the API servers.
	servers []string
	// pki is the directory of the certificates, and dir that for configuration files and logs.
	pki, dir string
	// cpus is the list of CPUs for the process; empty for all.
	cpus string
	// fields override fields of the gateway's configuration.
	fields map[string]any
}

// withFields returns the target with fields of the gateway's configuration.
func (t target) withFields(fields map[string]any) target {
	t.fields = fields
	return t
}

// start starts a front. haproxy fails with [errNoHAProxy] if the program is not installed.
func (t target) start(ctx context.Context, name string) (*front, error) {
	switch name {
	case direct:
		return &front{name: direct, addresses: t.servers}, nil
	case haproxy:
		return t.startHAProxy(ctx)
	}
	return t.startGateway(ctx)
}

// startGateway starts kube-gateway and waits until all API servers are ready for it.
func (t target) startGateway(ctx context.Context) (*front, error) {
	program, err := component.FindBinary("kube-gateway")
	if err != nil {
		return nil, err
	}
	addresses, err := freeAddresses(2)
	if err != nil {
		return nil, err
	}
	pkiFile := func(name string) string { return filepath.Join(t.pki, name) }
	fields := map[string]any{
		"apiVersion": "gateway.k8s-1m.dev/v1alpha1", "kind": "GatewayConfiguration",
		"listen": map[string]any{
			"address": addresses[0], "metricsAddress": addresses[1],
			"certFile": pkiFile(pki.GatewayFile + ".crt"), "keyFile": pkiFile(pki.GatewayFile + ".key"), "clientCaFile": pkiFile("ca.crt"),
		},
		"upstream": map[string]any{"servers": t.servers, "caFile": pkiFile("ca.crt")},
		"requestHeader": map[string]any{
			"certFile": pkiFile("front-proxy-client.crt"), "keyFile": pkiFile("front-proxy-client.key"),
		},
	}
	for name, value := range t.fields {
		fields[name] = value
	}
	content, err := yaml.Marshal(fields)
	if err != nil {
		return nil, err
	}
	f := &front{name: kubeGateway, addresses: addresses[:1], page: "http://" + addresses[1]}
	return f, t.run(ctx, f, content, f.gatewayReady(len(t.servers)), func(config string) []string { return []string{program, "--config", config} })
}

// gatewayReady returns a probe that succeeds when the gateway can reach all API servers.
func (f *front) gatewayReady(servers int) func() bool {
	return func() bool {
		ready, err := f.metric("kube_gateway_server_ready")
		return err == nil && len(ready) == servers && !slices.Contains(values(ready), 0)
	}
}

// errNoHAProxy tells how to install HAProxy.
var errNoHAProxy = errors.New("haproxy is not installed, so its columns are missing; install it with `apt-get install haproxy`")

// findHAProxy returns the path of HAProxy. Debian installs it to a directory that is in the $PATH of root
// only.
func findHAProxy() (string, error) {
	for _, name := range []string{"haproxy", "/usr/sbin/haproxy"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errNoHAProxy
}

// haproxyConfig is a configuration for TCP mode, in which TLS ends at the API servers. Timeouts are longer
// than the watches of client-go. The check is that of the documentation of kubeadm.
const haproxyConfig = `global
  maxconn %d
defaults
  mode tcp
  balance leastconn
  timeout connect 5s
  timeout client 30m
  timeout server 30m
frontend clients
  bind %s
  default_backend servers
backend servers
  option httpchk GET /readyz
  default-server check check-ssl verify none inter 1s fall 3 rise 2
%s`

// maxConnections returns the largest number of connections that HAProxy may have. Each needs two of the files
// that the process may open.
func maxConnections() int {
	const reserved, enough = 1000, 50_000
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return enough
	}
	return int(min(max(files.Max, 2*reserved)-reserved, 2*enough) / 2)
}

// startHAProxy starts HAProxy in TCP mode.
func (t target) startHAProxy(ctx context.Context) (*front, error) {
	program, err := findHAProxy()
	if err != nil {
		return nil, err
	}
	addresses, err := freeAddresses(1)
	if err != nil {
		return nil, err
	}
	var servers strings.Builder
	for i, address := range t.servers {
		fmt.Fprintf(&servers, "  server s%d %s\n", i, address)
	}
	f := &front{name: haproxy, addresses: addresses}
	listens := func() bool {
		conn, err := net.DialTimeout("tcp", addresses[0], time.Second)
		if err == nil {
			err = conn.Close()
		}
		return err == nil
	}
	content := fmt.Appendf(nil, haproxyConfig, maxConnections(), addresses[0], servers.String())
	return f, t.run(ctx, f, content, listens, func(config string) []string { return []string{program, "-db", "-f", config} })
}

// run writes the configuration, starts the process and waits until it is ready.
func (t target) run(ctx context.Context, f *front, config []byte, ready func() bool, command func(config string) []string) error {
	base := filepath.Join(t.dir, strings.ToLower(f.name))
	f.config, f.log = base+".conf", base+".log"
	if err := os.WriteFile(f.config, config, 0o600); err != nil {
		return err
	}
	log, err := os.Create(f.log)
	if err != nil {
		return err
	}
	defer log.Close()
	line := command(f.config)
	if t.cpus != "" {
		line = append([]string{"taskset", "--cpu-list", t.cpus}, line...)
	}
	f.process = exec.CommandContext(ctx, line[0], line[1:]...)
	f.process.Stdout, f.process.Stderr = log, log
	f.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := f.process.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", f.name, err)
	}
	if f.id, err = process.Of(f.process.Process.Pid); err != nil {
		return fmt.Errorf("%s exited at once: %w; its log is %s", f.name, err, f.log)
	}
	for deadline := time.Now().Add(frontTimeout); !ready(); time.Sleep(pollInterval) {
		if !f.id.Alive() || time.Now().After(deadline) || ctx.Err() != nil {
			f.stop()
			text, _ := os.ReadFile(f.log)
			return errors.Join(ctx.Err(), fmt.Errorf("%s is not ready after %s: %s", f.name, frontTimeout, lastLine(text)))
		}
	}
	return nil
}

// lastLine returns the last line of a log.
func lastLine(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

// metric returns the values of a metric of the gateway, by its labels as they are written on the page.
func (f *front) metric(name string) (map[string]float64, error) {
	response, err := http.Get(f.page + "/metrics")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return parseMetric(response.Body, name)
}

// freeAddresses returns loopback addresses with ports that no process uses.
func freeAddresses(count int) (addresses []string, err error) {
	for range count {
		listener, err := net.Listen("tcp", clusterdir.Loopback+":0")
		if err != nil {
			return nil, err
		}
		// All listeners stay open until the end, so that the ports differ.
		defer listener.Close()
		addresses = append(addresses, listener.Addr().String())
	}
	return addresses, nil
}
