package component

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
)

// newConfig returns the configuration and the directory of a cluster with changed settings. Its
// directories exist.
func newConfig(t *testing.T, change func(*clusterdir.Settings)) (clusterdir.Config, clusterdir.Dir) {
	t.Helper()
	t.Setenv("K1M_HOME", t.TempDir())
	dir, err := clusterdir.NewDir("test")
	if err == nil {
		err = dir.Create()
	}
	if err != nil {
		t.Fatal(err)
	}
	settings := clusterdir.DefaultSettings()
	change(&settings)
	settings.Complete()
	config := clusterdir.NewConfig("test", settings)
	for i, name := range settings.PortNames() {
		config.Ports[name] = 1000 + i
	}
	return config, dir
}

// twoGateways are settings with two gateways and three API servers.
func twoGateways(s *clusterdir.Settings) { s.APIServers, s.Gateway, s.Gateways = 3, new(true), 2 }

func TestClientsDependOnGateways(t *testing.T) {
	components := buildWith(t, twoGateways)
	gateways := []string{"kube-gateway", "kube-gateway-1"}
	servers := []string{"kube-apiserver", "kube-apiserver-1", "kube-apiserver-2"}
	for _, name := range gateways {
		gateway := find(t, components, name)
		if !slices.Equal(gateway.DependsOn, servers) || !strings.HasPrefix(gateway.Ready.URL, "http://127.0.0.1:") || gateway.Ready.URL == gateway.Address {
			t.Errorf("component %+v, want the API servers as dependencies, and /readyz on a port of its own", gateway)
		}
		if RoleOf(name) != RoleGateway {
			t.Errorf("RoleOf(%s) = %s, want %s", name, RoleOf(name), RoleGateway)
		}
	}
	for _, name := range []string{ControllerManager, clusterdir.SchedulerKube, Kwok} {
		if client := find(t, components, name); !slices.Equal(client.DependsOn, gateways) {
			t.Errorf("dependencies of %s = %q, want %q", name, client.DependsOn, gateways)
		}
	}
	for _, name := range servers {
		for _, arg := range find(t, components, name).Args {
			if strings.Contains(arg, "gateway") {
				t.Errorf("argument of %s: %s, want none that refers to a gateway", name, arg)
			}
		}
	}
}

// TestKubeconfigsReferToGateways checks that clients use the gateways, that k1m itself uses an API server,
// and that the administrator can connect to each gateway and API server.
func TestKubeconfigsReferToGateways(t *testing.T) {
	config, dir := newConfig(t, twoGateways)
	authority, err := pki.Ensure(dir.PKI(), "test", ServiceCIDR(), net.ParseIP(clusterdir.Loopback))
	if err == nil {
		err = WriteKubeconfigs(config, dir, authority)
	}
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"admin": "kube-gateway", "controller-manager": "kube-gateway", "scheduler": "kube-gateway-1", "kwok": "kube-gateway", "node-sim": "kube-gateway-1",
		"super-admin": "kube-apiserver", "admin-kube-gateway-1": "kube-gateway-1", "admin-kube-apiserver-2": "kube-apiserver-2",
	}
	for file, server := range want {
		client, err := clientcmd.BuildConfigFromFlags("", dir.Kubeconfig(file))
		if err != nil || client.Host != config.Ports.URL(server) {
			t.Errorf("kubeconfig %s = %+v, %v, want the server %s", file, client, err, config.Ports.URL(server))
		}
	}
	for _, name := range ServerNames(config) {
		if _, err := os.Stat(dir.Kubeconfig(AdminFileFor(name))); err != nil {
			t.Error(err)
		}
	}
	if urls := ClientURLs(config); len(urls) != 2 || urls[1] != config.Ports.URL("kube-gateway-1") {
		t.Errorf("ClientURLs() = %q, want those of the two gateways", urls)
	}
}

// TestGatewayConfigFile checks the configuration of each gateway, and that a file of the user overrides
// single fields.
func TestGatewayConfigFile(t *testing.T) {
	config, dir := newConfig(t, twoGateways)
	config.Settings.GatewayConfig = filepath.Join(t.TempDir(), "user.yaml")
	user := "listen: {maxStreams: 7}\nbalance: {imbalance: 0.5}\ndrainTimeout: 1s\nnodePath: {watches: {mode: on}}\n"
	if err := os.WriteFile(config.Settings.GatewayConfig, []byte(user), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteConfigFiles(config, dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kube-gateway", "kube-gateway-1"} {
		var got struct {
			Listen struct {
				Address, MetricsAddress, CertFile, ClientCaFile string
				MaxStreams                                      int
			}
			Upstream      struct{ Servers []string }
			RequestHeader struct{ CertFile string }
			Balance       struct{ Imbalance float64 }
			DrainTimeout  string
			Control       struct{ Socket string }
			NodePath      struct {
				Store struct {
					Endpoints []string
					CertFile  string
				}
				Watches struct{ Mode any }
			}
		}
		content, err := os.ReadFile(dir.ConfigFile(name + ".yaml"))
		if err == nil {
			err = yaml.Unmarshal(content, &got)
		}
		if err != nil {
			t.Fatal(err)
		}
		if got.Listen.Address != config.Ports.Address(name) || got.Listen.MetricsAddress != config.Ports.Address(name+"-metrics") || len(got.Upstream.Servers) != 3 ||
			filepath.Base(got.Listen.CertFile) != "kube-gateway.crt" || filepath.Base(got.RequestHeader.CertFile) != "front-proxy-client.crt" {
			t.Errorf("configuration of %s:\n%s\nwant its ports, three API servers and its certificates", name, content)
		}
		if store := got.NodePath.Store; len(store.Endpoints) != 1 || store.Endpoints[0] != config.Ports.URL("store") || filepath.Base(store.CertFile) != "kube-gateway-client.crt" {
			t.Errorf("configuration of %s:\n%s\nwant the store and the gateways' certificate for it", name, content)
		}
		if got.Listen.MaxStreams != 7 || got.Balance.Imbalance != 0.5 || got.DrainTimeout != "1s" || got.NodePath.Watches.Mode != "on" {
			t.Errorf("configuration of %s:\n%s\nwant the fields of the user's file", name, content)
		}
		if got.Control.Socket != dir.Socket(name) || filepath.Dir(got.Control.Socket) != dir.Root() {
			t.Errorf("configuration of %s:\n%s\nwant a control.socket of its own in %s", name, content, dir.Root())
		}
	}
}

// TestStoreLimitsGateways checks that only a cluster with gateways limits their certificate.
func TestStoreLimitsGateways(t *testing.T) {
	limited := func(change func(*clusterdir.Settings)) bool {
		args := find(t, buildWith(t, change), Store).Args
		writes := slices.Contains(args, "--client-cert-permission=kube-gateway=readwrite:/registry/leases/kube-node-lease/")
		if reads := slices.Contains(args, "--client-cert-permission=kube-gateway=read:/registry/leases/"); reads != writes {
			t.Errorf("gateways may read all Leases: %v, and write those of nodes: %v", reads, writes)
		}
		return writes
	}
	etcd := func(s *clusterdir.Settings) { twoGateways(s); s.Store = clusterdir.StoreEtcd }
	if !limited(twoGateways) || limited(func(*clusterdir.Settings) {}) || limited(etcd) {
		t.Error("want --client-cert-permission for mem_etcd with gateways only")
	}
}

// TestGatewayRenewsLeasesInTheirStore checks which store gateways use, and that no own store gives their certificate
// more than the Leases.
func TestGatewayRenewsLeasesInTheirStore(t *testing.T) {
	for own, want := range map[string]string{"pods=own": "store", "leases,pods=own": "store-leases"} {
		change := func(s *clusterdir.Settings) { twoGateways(s); s.StoreFor = []string{own} }
		config, dir := newConfig(t, change)
		content, err := gatewayConfig(config, dir, "kube-gateway")
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			NodePath struct{ Store struct{ Endpoints []string } }
		}
		if err := yaml.Unmarshal(content, &got); err != nil {
			t.Fatal(err)
		}
		if endpoints := got.NodePath.Store.Endpoints; !slices.Equal(endpoints, []string{config.Ports.URL(want)}) {
			t.Errorf("with --store-for %s the gateway uses the store %q, want %s", own, endpoints, config.Ports.URL(want))
		}
		for _, name := range config.Settings.StoreNames() {
			args := find(t, buildWith(t, change), name).Args
			if !slices.Contains(args, "--client-cert-permission=kube-gateway=read:/registry/leases/") {
				t.Errorf("arguments of %s = %q, want that they limit the gateways", name, args)
			}
		}
	}
}

// TestGatewayHasNoSocketWithALongPath checks that a gateway starts although the path of its socket would be
// too long for the kernel.
func TestGatewayHasNoSocketWithALongPath(t *testing.T) {
	config, _ := newConfig(t, twoGateways)
	home := t.TempDir()
	for {
		t.Setenv("K1M_HOME", home)
		dir, err := clusterdir.NewDir("test")
		if err != nil {
			t.Fatal(err)
		}
		content, err := gatewayConfig(config, dir, "kube-gateway")
		if err != nil {
			t.Fatal(err)
		}
		length := len(dir.Socket("kube-gateway"))
		if has := strings.Contains(string(content), "control:"); has != (length <= 107) {
			t.Errorf("with a path of %d bytes the configuration has a socket: %v", length, has)
		}
		if length > 110 {
			return
		}
		home += "x"
	}
}

func TestUnreadableGatewayConfigIsNamed(t *testing.T) {
	config, dir := newConfig(t, twoGateways)
	for content, want := range map[string]string{"": "no such file", "- a\n": "not a mapping", "1: a\n": "not a mapping", "a: [\n": "line 1"} {
		config.Settings.GatewayConfig = filepath.Join(t.TempDir(), "user.yaml")
		if content != "" {
			if err := os.WriteFile(config.Settings.GatewayConfig, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		err := WriteConfigFiles(config, dir)
		if err == nil || !strings.Contains(err.Error(), "--gateway-config") || !strings.Contains(err.Error(), want) {
			t.Errorf("WriteConfigFiles() with the user's file %q = %v, want an error with --gateway-config and %q", content, err, want)
		}
	}
}

// TestEveryGatewayHasAMetricsEndpoint also checks that a cluster without a gateway has none.
func TestEveryGatewayHasAMetricsEndpoint(t *testing.T) {
	count := func(change func(*clusterdir.Settings)) (found int) {
		config, _ := newConfig(t, change)
		for _, endpoint := range MetricsEndpoints(config) {
			if endpoint.Role == RoleGateway && endpoint.URL == "http://"+config.Ports.Address(endpoint.Component+"-metrics")+"/metrics" {
				found++
			}
		}
		return found
	}
	if with, without := count(twoGateways), count(func(*clusterdir.Settings) {}); with != 2 || without != 0 {
		t.Errorf("MetricsEndpoints() = %d gateways of two, and %d of a cluster without, want 2 and 0", with, without)
	}
}

// TestAPIServersAcceptEachHeaderOfTheGateway checks the header fields in which a gateway passes on a user.
func TestAPIServersAcceptEachHeaderOfTheGateway(t *testing.T) {
	args := find(t, buildWith(t, twoGateways), "kube-apiserver-2").Args
	for _, want := range []string{
		"--requestheader-username-headers=X-Remote-User", "--requestheader-uid-headers=X-Remote-Uid",
		"--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-allowed-names=front-proxy-client",
	} {
		if !slices.Contains(args, want) {
			t.Errorf("arguments of an API server = %q, want %s", args, want)
		}
	}
}

// TestWatchOfLeases checks that gateways which renew Leases also serve their watches, unless the user says otherwise.
func TestWatchOfLeases(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		args []string
		want string
	}{
		"no file": {},
		"shadow":  {file: "nodePath: {leases: {mode: shadow}}"},
		"on":      {file: "nodePath: {leases: {mode: on, comparisons: 7}}", want: "on"},
		"flag":    {args: []string{"node-path-leases=on"}, want: "on"},
		"off":     {file: "nodePath: {leases: {mode: on, watch: off}}", want: "off"},
	} {
		config, dir := newConfig(t, func(s *clusterdir.Settings) { twoGateways(s); s.GatewayArgs = c.args })
		if c.file != "" {
			config.Settings.GatewayConfig = filepath.Join(t.TempDir(), "user.yaml")
			if err := os.WriteFile(config.Settings.GatewayConfig, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		content, err := gatewayConfig(config, dir, "kube-gateway")
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			NodePath struct{ Leases struct{ Watch string } }
		}
		if err := yaml.Unmarshal(content, &got); err != nil || got.NodePath.Leases.Watch != c.want {
			t.Errorf("%s: nodePath.leases.watch is %q (%v), want %q:\n%s", name, got.NodePath.Leases.Watch, err, c.want, content)
		}
	}
}

// TestUncachedLeases checks that the API servers have no watch cache for Leases if gateways renew these, and that
// flags of the user come last.
func TestUncachedLeases(t *testing.T) {
	const flag = "--watch-cache-sizes=leases.coordination.k8s.io#0"
	for name, c := range map[string]struct {
		file string
		args []string
		want bool
	}{
		"no file":             {},
		"off":                 {file: "nodePath: {leases: {mode: off}}"},
		"shadow":              {file: "nodePath: {leases: {mode: shadow}}"},
		"on":                  {file: "nodePath: {leases: {mode: on}}", want: true},
		"on as a string":      {file: "nodePath: {leases: {mode: \"on\"}}", want: true},
		"watches only":        {file: "nodePath: {watches: {mode: on}}"},
		"flag":                {args: []string{"node-path-leases=on"}, want: true},
		"flag before file":    {file: "nodePath: {leases: {mode: on}}", args: []string{"--node-path-leases=off"}},
		"last flag":           {args: []string{"node-path-leases=off", "node-path-leases=on"}, want: true},
		"file without fields": {file: "- a"},
	} {
		change := func(s *clusterdir.Settings) {
			twoGateways(s)
			s.GatewayArgs, s.APIServerArgs = c.args, []string{"watch-cache-sizes=leases.coordination.k8s.io#100"}
			if c.file != "" {
				s.GatewayConfig = filepath.Join(t.TempDir(), "user.yaml")
				if err := os.WriteFile(s.GatewayConfig, []byte(c.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		args := find(t, buildWith(t, change), "kube-apiserver-1").Args
		if got := slices.Contains(args, flag); got != c.want {
			t.Errorf("%s: the API servers have %s: %v, want %v", name, flag, got, c.want)
		}
		if last := args[len(args)-1]; last != "--watch-cache-sizes=leases.coordination.k8s.io#100" {
			t.Errorf("%s: the last flag is %s, want that of the user", name, last)
		}
	}
}
