package component

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/util/webhook"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// buildWith returns the components of a cluster with changed settings.
func buildWith(t *testing.T, change func(*clusterdir.Settings)) []Component {
	t.Helper()
	t.Setenv("K1M_HOME", t.TempDir())
	dir, err := clusterdir.NewDir("test")
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
	components, err := Build(config, dir, func(name string) (string, error) { return "/bin/" + name, nil })
	if err != nil {
		t.Fatal(err)
	}
	return components
}

func find(t *testing.T, components []Component, name string) Component {
	t.Helper()
	i := slices.IndexFunc(components, func(c Component) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("Build() returned no component %s", name)
	}
	return components[i]
}

func TestDependenciesComeBeforeTheirDependents(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range buildWith(t, func(s *clusterdir.Settings) { s.APIServers = 3 }) {
		for _, name := range c.DependsOn {
			if !seen[name] {
				t.Errorf("%s comes before its dependency %s, want it after", c.Name, name)
			}
		}
		if c.Ready.URL == "" || c.Address == "" || c.StopGrace == 0 {
			t.Errorf("component %+v lacks a readiness URL, an address or a stop period", c)
		}
		seen[c.Name] = true
	}
	if len(seen) != 7 {
		t.Errorf("Build() = components %v, want 7", seen)
	}
}

func TestComponentsThatDoNotRun(t *testing.T) {
	components := buildWith(t, func(s *clusterdir.Settings) { s.Without = []string{ControllerManager, clusterdir.AnyScheduler} })
	for _, c := range components {
		if c.Name == ControllerManager || RoleOf(c.Name) == RoleScheduler {
			t.Errorf("Build() = %s, which --without leaves out", c.Name)
		}
	}
	if len(components) != 3 {
		t.Errorf("Build() = %d components, want store, API server and kwok", len(components))
	}
}

// Several controller managers elect a leader, and their program depends on the standby.
func TestControllerManagers(t *testing.T) {
	for standby, program := range map[string]string{clusterdir.StandbyCold: "/bin/kube-controller-manager", clusterdir.StandbyWarm: "/bin/warm-controller-manager"} {
		components := buildWith(t, func(s *clusterdir.Settings) { s.ControllerManagers, s.Standby = 2, standby })
		for _, name := range []string{ControllerManager, ControllerManager + "-1"} {
			c := find(t, components, name)
			if c.Binary != program || RoleOf(c.Name) != ControllerManager {
				t.Errorf("%s with a %s standby is %s with role %s", name, standby, c.Binary, RoleOf(c.Name))
			}
			for _, want := range []string{"--leader-elect=true", "--leader-elect-lease-duration=10s", "--leader-elect-renew-deadline=7s", "--leader-elect-retry-period=500ms"} {
				if !slices.Contains(c.Args, want) {
					t.Errorf("%s with a %s standby lacks %s", name, standby, want)
				}
			}
		}
		if first, second := find(t, components, ControllerManager), find(t, components, ControllerManager+"-1"); first.Address == second.Address {
			t.Errorf("both controller managers serve at %s", first.Address)
		}
	}
	single := find(t, buildWith(t, func(*clusterdir.Settings) {}), ControllerManager)
	if !slices.Contains(single.Args, "--leader-elect=false") {
		t.Error("a single controller manager elects a leader")
	}
}

// Several node-sims divide the nodes among themselves, and each connects to another gateway.
func TestNodeSimsDivideTheNodes(t *testing.T) {
	components := buildWith(t, func(s *clusterdir.Settings) {
		s.NodeSimulator, s.NodeSims, s.NodeMode, s.WireNodes = clusterdir.SimulatorNodeSim, 3, clusterdir.NodesMixed, 7
		s.Gateway, s.Gateways = new(true), 2
	})
	wireNodes := []string{"3", "2", "2"}
	for i, name := range []string{"node-sim", "node-sim-1", "node-sim-2"} {
		c, gateway := find(t, components, name), find(t, components, clusterdir.GatewayName(i%2))
		for _, want := range []string{
			fmt.Sprintf("--shard=%d/3", i), "--wire-nodes=" + wireNodes[i], "--server=" + strings.TrimPrefix(gateway.Address, "https://"),
			"--control-address=" + strings.TrimPrefix(c.Address, "http://"),
		} {
			if !slices.Contains(c.Args, want) {
				t.Errorf("the arguments of %s are %q, want %s", name, c.Args, want)
			}
		}
		if RoleOf(name) != NodeSim {
			t.Errorf("the role of %s is %s", name, RoleOf(name))
		}
	}
}

func TestComponentsArePinnedToTheirCPUs(t *testing.T) {
	components := buildWith(t, func(s *clusterdir.Settings) {
		s.APIServers, s.Scheduler, s.SchedulerReplicas = 2, clusterdir.SchedulerDist, 2
		s.CPUs = []string{"kube-apiserver=0-3", "scheduler=4", "dist-scheduler-1=5,6"}
	})
	for name, cpus := range map[string]string{
		"kube-apiserver": "0-3", "kube-apiserver-1": "0-3", "dist-scheduler": "4", "dist-scheduler-1": "5,6", Store: "",
	} {
		program, args := find(t, components, name).Command()
		pinned := len(args) > 3 && slices.Equal(args[:2], []string{"--cpu-list", cpus}) && strings.HasPrefix(args[2], "/bin/")
		if pinned != (cpus != "") || (program == "/bin/taskset") != pinned {
			t.Errorf("Command() of %s = %s %q, want it pinned to CPUs %q", name, program, args, cpus)
		}
	}
}

func TestComponentsBindToLoopbackOnly(t *testing.T) {
	for _, c := range buildWith(t, func(s *clusterdir.Settings) { s.Store = clusterdir.StoreEtcd }) {
		for _, arg := range c.Args {
			key, value, _ := strings.Cut(arg, "=")
			if (strings.Contains(key, "listen") || strings.Contains(key, "bind") || strings.Contains(key, "server-address")) && !strings.Contains(value, clusterdir.Loopback) {
				t.Errorf("argument %s of %s, want the address %s", arg, c.Name, clusterdir.Loopback)
			}
		}
	}
}

func TestTraceRunsProxyBetweenAPIServersAndStore(t *testing.T) {
	components := buildWith(t, func(s *clusterdir.Settings) { s.Trace = true })
	proxy, server := find(t, components, Proxy), find(t, components, clusterdir.APIServerName(0))
	if !slices.Equal(server.DependsOn, []string{Proxy}) || !slices.Equal(proxy.DependsOn, []string{Store}) {
		t.Errorf("dependencies of the API server = %v and of the proxy = %v, want the proxy and the store", server.DependsOn, proxy.DependsOn)
	}
	store := find(t, components, Store)
	if !slices.Contains(server.Args, "--etcd-servers="+proxy.Address) || !slices.Contains(proxy.Args, "--endpoints="+store.Address) {
		t.Errorf("arguments of the API server = %q and of the proxy = %q, want the addresses %s and %s", server.Args, proxy.Args, proxy.Address, store.Address)
	}

	components = buildWith(t, func(s *clusterdir.Settings) {
		s.Trace, s.TraceFile, s.TraceValues = true, "/f", clusterdir.TraceFull
		s.StoreAddress, s.StoreCAFile = "http://127.0.0.1:2379", "/ca"
	})
	proxy = find(t, components, Proxy)
	if len(proxy.DependsOn) != 0 || slices.Contains(proxy.Args, "--cacert=/ca") {
		t.Errorf("proxy of an external store by HTTP = %+v, want no dependencies and no --cacert", proxy)
	}
	for _, arg := range []string{"--endpoints=http://127.0.0.1:2379", "--record=/f", "--values=full"} {
		if !slices.Contains(proxy.Args, arg) {
			t.Errorf("arguments of the proxy = %q, want %s among them", proxy.Args, arg)
		}
	}
}

func TestSchedulerProgramFollowsSettings(t *testing.T) {
	dist := find(t, buildWith(t, func(s *clusterdir.Settings) { s.Scheduler = clusterdir.SchedulerDist }), clusterdir.SchedulerDist)
	kube := find(t, buildWith(t, func(*clusterdir.Settings) {}), clusterdir.SchedulerKube)
	if dist.Binary != "/bin/dist-scheduler" || kube.Binary != "/bin/kube-scheduler" || len(dist.Args) != len(kube.Args) {
		t.Errorf("schedulers = %+v and %+v, want the programs dist-scheduler and kube-scheduler with the same number of arguments", dist, kube)
	}
}

func TestWebhookIntakeHasItsOwnPort(t *testing.T) {
	components := buildWith(t, func(s *clusterdir.Settings) {
		s.Scheduler, s.SchedulerIntake = clusterdir.SchedulerDist, clusterdir.IntakeWebhook
	})
	args := find(t, components, clusterdir.SchedulerDist).Args
	argsWithoutWebhook := find(t, buildWith(t, func(s *clusterdir.Settings) { s.Scheduler = clusterdir.SchedulerDist }), clusterdir.SchedulerDist).Args
	for _, flag := range []string{"--intake=webhook", "--intake-bind-address=" + clusterdir.Loopback} {
		if !slices.Contains(args, flag) || slices.Contains(argsWithoutWebhook, flag) {
			t.Errorf("arguments with the webhook = %q and without = %q, want %s only with the webhook", args, argsWithoutWebhook, flag)
		}
	}
	port := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--intake-port=1") })
	if port < 0 || slices.ContainsFunc(components, func(c Component) bool {
		return strings.HasSuffix(c.Address, strings.TrimPrefix(args[port], "--intake-port="))
	}) {
		t.Errorf("arguments = %q, want --intake-port with a port that no other component has", args)
	}
}

func TestEachReplicaHasItsOwnIntakePort(t *testing.T) {
	components := buildWith(t, func(s *clusterdir.Settings) {
		s.Scheduler, s.SchedulerIntake, s.SchedulerReplicas, s.SchedulerRelays = clusterdir.SchedulerDist, clusterdir.IntakeWebhook, 2, 1
	})
	ports := map[string]bool{}
	for _, name := range []string{"dist-scheduler", "dist-scheduler-1", "dist-scheduler-relay-0"} {
		args := find(t, components, name).Args
		port := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--intake-port=1") })
		if port < 0 || ports[args[port]] {
			t.Fatalf("arguments of %s = %q, want --intake-port with a port that no other replica has", name, args)
		}
		ports[args[port]] = true
	}
}

// TestEachReplicaHasItsOwnCertificate checks that no certificate of the cluster's CA is used between
// replicas.
func TestEachReplicaHasItsOwnCertificate(t *testing.T) {
	components := buildWith(t, func(s *clusterdir.Settings) {
		s.Scheduler, s.SchedulerReplicas, s.SchedulerRelays = clusterdir.SchedulerDist, 2, 1
	})
	for _, name := range []string{"dist-scheduler", "dist-scheduler-1", "dist-scheduler-relay-0"} {
		args := find(t, components, name).Args
		for flag, file := range map[string]string{"cert": "replica-" + name + ".crt", "key": "replica-" + name + ".key", "ca": "replica-ca.crt"} {
			want := func(arg string) bool {
				return strings.HasPrefix(arg, "--replica-"+flag+"-file=") && strings.HasSuffix(arg, "/pki/"+file)
			}
			if !slices.ContainsFunc(args, want) {
				t.Errorf("arguments of %s = %q, want --replica-%s-file with %s", name, args, flag, file)
			}
		}
	}
}

// TestAPIServersAuthenticateToTheWebhook checks that the API servers have a certificate for the webhooks
// of the schedulers only, and that the schedulers require it.
func TestAPIServersAuthenticateToTheWebhook(t *testing.T) {
	settings := func(s *clusterdir.Settings) {
		s.Scheduler, s.SchedulerIntake, s.SchedulerReplicas = clusterdir.SchedulerDist, clusterdir.IntakeWebhook, 2
	}
	components := buildWith(t, settings)
	dir, err := clusterdir.NewDir("test")
	if err == nil {
		err = dir.Create()
	}
	if err != nil {
		t.Fatal(err)
	}
	config := clusterdir.NewConfig("test", clusterdir.DefaultSettings())
	settings(&config.Settings)
	for i, name := range config.Settings.PortNames() {
		config.Ports[name] = 1000 + i
	}
	if err := WriteConfigFiles(config, dir); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(find(t, components, clusterdir.APIServerName(0)).Args, "--admission-control-config-file="+dir.ConfigFile("admission.yaml")) {
		t.Errorf("arguments of the API server = %q, want --admission-control-config-file", find(t, components, clusterdir.APIServerName(0)).Args)
	}
	resolver, err := webhook.NewDefaultAuthenticationInfoResolver(dir.ConfigFile("webhook-client.conf"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dist-scheduler", "dist-scheduler-1"} {
		client, err := resolver.ClientConfigFor(config.Ports.Address(clusterdir.IntakePort(name)))
		if err != nil || !strings.HasSuffix(client.CertFile, "/pki/apiserver-webhook-client.crt") || !strings.HasSuffix(client.KeyFile, "/pki/apiserver-webhook-client.key") {
			t.Errorf("client configuration for the webhook of %s = %+v, %v, want the certificate apiserver-webhook-client", name, client, err)
		}
		args := find(t, components, name).Args
		if !slices.Contains(args, "--intake-client-names=kube-apiserver-webhook-client") {
			t.Errorf("arguments of %s = %q, want --intake-client-names", name, args)
		}
	}
	if client, err := resolver.ClientConfigFor("127.0.0.1:9"); err != nil || client.CertFile != "" {
		t.Errorf("client configuration for another webhook = %+v, %v, want no certificate", client, err)
	}
	for _, arg := range find(t, buildWith(t, func(*clusterdir.Settings) {}), clusterdir.APIServerName(0)).Args {
		if strings.Contains(arg, "admission-control") {
			t.Errorf("argument of an API server without webhook: %s", arg)
		}
	}
}

func TestStoreArgumentsDependOnStoreAndWALMode(t *testing.T) {
	mem := find(t, buildWith(t, func(*clusterdir.Settings) {}), Store).Args
	etcd := find(t, buildWith(t, func(s *clusterdir.Settings) { s.Store = clusterdir.StoreEtcd }), Store).Args
	none := find(t, buildWith(t, func(s *clusterdir.Settings) { s.WALMode = clusterdir.WALNone }), Store).Args
	has := func(args []string, flag string) bool {
		return slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, flag+"=") })
	}
	if !slices.Contains(mem, "--wal-mode=buffered") || has(mem, "--initial-cluster") || !has(mem, "--data-dir") {
		t.Errorf("arguments of mem_etcd = %q, want --wal-mode=buffered and --data-dir and not --initial-cluster", mem)
	}
	if has(etcd, "--wal-mode") || !has(etcd, "--initial-cluster") || !has(etcd, "--quota-backend-bytes") {
		t.Errorf("arguments of etcd = %q, want --initial-cluster and --quota-backend-bytes and not --wal-mode", etcd)
	}
	if has(none, "--data-dir") {
		t.Errorf("arguments of mem_etcd with WAL mode none = %q, want no --data-dir", none)
	}
}

// TestOwnStoresAreUsedByEachAPIServer checks the processes of own stores, and that each API server uses them for their
// resources.
func TestOwnStoresAreUsedByEachAPIServer(t *testing.T) {
	for _, kind := range []string{clusterdir.StoreMemEtcd, clusterdir.StoreEtcd} {
		components := buildWith(t, func(s *clusterdir.Settings) {
			s.Store, s.APIServers, s.StoreFor, s.CPUs = kind, 2, []string{"pods,events,leases=own"}, []string{"store=0", "store-pods=1"}
		})
		stores := []string{"store", "store-events", "store-leases", "store-pods"}
		directories, addresses := map[string]bool{}, map[string]bool{}
		for _, name := range stores {
			store := find(t, components, name)
			data := store.Args[slices.IndexFunc(store.Args, func(arg string) bool { return strings.HasPrefix(arg, "--data-dir=") })]
			directories[data], addresses[store.Address], addresses[store.Ready.URL] = true, true, true
			if RoleOf(name) != Store || filepath.Base(store.Binary) != kind || len(store.DependsOn) > 0 {
				t.Errorf("component %+v of role %s, want a %s without dependencies", store, RoleOf(name), kind)
			}
			if want := map[bool]string{true: "1", false: "0"}[name == "store-pods"]; store.CPUs != want {
				t.Errorf("%s runs on CPUs %q, want %s", name, store.CPUs, want)
			}
		}
		if len(directories) != len(stores) || len(addresses) != 2*len(stores) {
			t.Errorf("the stores have the directories %v and the addresses %v, want different ones", directories, addresses)
		}
		main, events, leases, pods := find(t, components, "store"), find(t, components, "store-events"), find(t, components, "store-leases"), find(t, components, "store-pods")
		for _, name := range []string{"kube-apiserver", "kube-apiserver-1"} {
			server := find(t, components, name)
			if !slices.Equal(server.DependsOn, stores) {
				t.Errorf("%s depends on %q, want %q", name, server.DependsOn, stores)
			}
			for _, want := range []string{
				"--etcd-servers=" + main.Address,
				"--etcd-servers-overrides=/events#" + events.Address + ",coordination.k8s.io/leases#" + leases.Address + ",/pods#" + pods.Address,
			} {
				if !slices.Contains(server.Args, want) {
					t.Errorf("arguments of %s = %q, want %s", name, server.Args, want)
				}
			}
		}
	}
}

// TestOneStoreHasNoOverrides also checks the endpoints of the metrics of a cluster with own stores.
func TestOneStoreHasNoOverrides(t *testing.T) {
	server := find(t, buildWith(t, func(*clusterdir.Settings) {}), clusterdir.APIServerName(0))
	if slices.ContainsFunc(server.Args, func(arg string) bool { return strings.Contains(arg, "etcd-servers-overrides") }) {
		t.Errorf("arguments of an API server of one store = %q, want no --etcd-servers-overrides", server.Args)
	}
	config, _ := newConfig(t, func(s *clusterdir.Settings) { s.StoreFor = []string{"pods=own"} })
	var stores []string
	for _, endpoint := range MetricsEndpoints(config) {
		if endpoint.Role == Store {
			stores = append(stores, endpoint.Component+" "+endpoint.URL)
		}
	}
	want := []string{
		"store http://" + config.Ports.Address("store-metrics") + "/metrics", "store-pods http://" + config.Ports.Address("store-pods-metrics") + "/metrics",
	}
	if !slices.Equal(stores, want) {
		t.Errorf("metrics of the stores = %q, want %q", stores, want)
	}
}

func TestUserArgumentsComeLast(t *testing.T) {
	server := find(t, buildWith(t, func(s *clusterdir.Settings) {
		s.APIServerArgs, s.APIServerEnv = []string{"--event-ttl=1m", "max-requests-inflight=7"}, []string{"A=b"}
	}), clusterdir.APIServerName(0))
	if last := server.Args[len(server.Args)-2:]; last[0] != "--event-ttl=1m" || last[1] != "--max-requests-inflight=7" || server.Env[0] != "A=b" {
		t.Errorf("last arguments = %q, environment = %q, want those of the settings", last, server.Env)
	}
}

func TestExternalStoreIsNotStarted(t *testing.T) {
	components := buildWith(t, func(s *clusterdir.Settings) { s.StoreAddress = "http://127.0.0.1:2379" })
	if components[0].Name == Store || len(components[0].DependsOn) != 0 || !slices.Contains(components[0].Args, "--etcd-servers=http://127.0.0.1:2379") {
		t.Errorf("first component = %+v, want an API server of the external store without dependencies", components[0])
	}
}

func TestMissingProgramIsNamed(t *testing.T) {
	_, err := Build(clusterdir.NewConfig("test", clusterdir.DefaultSettings()), clusterdir.Dir{}, func(name string) (string, error) {
		return "", errors.New("no " + name)
	})
	if err == nil || err.Error() != "no mem_etcd" {
		t.Errorf("Build() without programs = %v, want error %q", err, "no mem_etcd")
	}
}

// TestMembersOfAStoreKnowEachOther checks the processes of a store with several members, and that API servers connect to all.
func TestMembersOfAStoreKnowEachOther(t *testing.T) {
	components := buildWith(t, func(s *clusterdir.Settings) {
		s.Store, s.StoreReplicas, s.APIServers, s.CPUs = clusterdir.StoreEtcd, 3, 2, []string{"store=0"}
	})
	var clients, cluster []string
	directories := map[string]bool{}
	for _, name := range []string{"store-1", "store-2", "store-3"} {
		member := find(t, components, name)
		clients, cluster = append(clients, member.Address), append(cluster, name+"="+value(t, member, "initial-advertise-peer-urls"))
		directories[value(t, member, "data-dir")] = true
		if RoleOf(name) != Store || member.Volatile || member.CPUs != "0" || value(t, member, "name") != name {
			t.Errorf("component %+v, want a member %s of the store on CPU 0", member, name)
		}
		if listen := value(t, member, "listen-peer-urls"); listen != value(t, member, "initial-advertise-peer-urls") {
			t.Errorf("%s listens for peers at %s, want the URL that it advertises", name, listen)
		}
		if _, args := member.Command(); !slices.Contains(args, "--initial-cluster-state=new") {
			t.Errorf("arguments of %s = %q, want those of a new cluster", name, args)
		}
	}
	if got := value(t, find(t, components, "store-2"), "initial-cluster"); got != strings.Join(cluster, ",") || len(directories) != 3 {
		t.Errorf("--initial-cluster is %s with %d directories, want %q", got, len(directories), cluster)
	}
	for i := range 2 {
		server := find(t, components, clusterdir.APIServerName(i))
		if got := value(t, server, "etcd-servers"); got != strings.Join(clients, ",") || !slices.Equal(server.DependsOn, []string{"store-1", "store-2", "store-3"}) {
			t.Errorf("%s connects to %s and depends on %q, want all members", server.Name, got, server.DependsOn)
		}
	}
}

func TestMembersWithFaultsAreReachedThroughTheSupervisor(t *testing.T) {
	components := buildWith(t, func(s *clusterdir.Settings) {
		s.Store, s.StoreReplicas, s.StoreFaults = clusterdir.StoreEtcd, 3, true
	})
	member := find(t, components, "store-1")
	if listen := value(t, member, "listen-peer-urls"); listen == value(t, member, "initial-advertise-peer-urls") {
		t.Errorf("the member listens for peers at %s, which it advertises; want another port, behind the supervisor", listen)
	}
}

func TestReplicatedMemEtcdHasAReplicationLog(t *testing.T) {
	for _, log := range []string{"", clusterdir.LogFsync, clusterdir.LogMemory} {
		member := find(t, buildWith(t, func(s *clusterdir.Settings) { s.StoreReplicas, s.ReplicationLog = 3, log }), "store-1")
		want := log
		if want == "" {
			want = clusterdir.LogBuffered
		}
		if value(t, member, "replication-log") != want || value(t, member, "wal-mode") != "" || (value(t, member, "data-dir") != "") != (log != clusterdir.LogMemory) {
			t.Errorf("arguments of mem_etcd with --replication-log %q = %q", log, member.Args)
		}
	}
}

// value returns the value of a flag of a component; empty if it is not set.
func value(t *testing.T, c Component, flag string) string {
	t.Helper()
	for _, arg := range c.Args {
		if value, found := strings.CutPrefix(arg, "--"+flag+"="); found {
			return value
		}
	}
	return ""
}
