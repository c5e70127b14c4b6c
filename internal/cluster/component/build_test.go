package component

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// buildWith builds a cluster with changed default settings. Its ports start at 1000.
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
		t.Fatalf("the cluster has no component %s", name)
	}
	return components[i]
}

func TestDependenciesComeBeforeTheirDependents(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range buildWith(t, func(s *clusterdir.Settings) { s.APIServers = 3 }) {
		for _, name := range c.DependsOn {
			if !seen[name] {
				t.Errorf("%s comes before its dependency %s", c.Name, name)
			}
		}
		if c.Ready.URL == "" || c.Address == "" || c.StopGrace == 0 {
			t.Errorf("a component has no probe, address or stop grace: %+v", c)
		}
		seen[c.Name] = true
	}
	if len(seen) != 7 {
		t.Errorf("%d components instead of 7: %v", len(seen), seen)
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
			t.Errorf("%s must run on CPUs %q, but its command is %s %v", name, cpus, program, args)
		}
	}
}

func TestComponentsBindToLoopbackOnly(t *testing.T) {
	for _, c := range buildWith(t, func(s *clusterdir.Settings) { s.Store = clusterdir.StoreEtcd }) {
		for _, arg := range c.Args {
			key, value, _ := strings.Cut(arg, "=")
			if (strings.Contains(key, "listen") || strings.Contains(key, "bind") || strings.Contains(key, "server-address")) && !strings.Contains(value, clusterdir.Loopback) {
				t.Errorf("%s listens on another address than loopback: %s", c.Name, arg)
			}
		}
	}
}

func TestTraceRunsProxyBetweenAPIServersAndStore(t *testing.T) {
	components := buildWith(t, func(s *clusterdir.Settings) { s.Trace = true })
	proxy, server := find(t, components, Proxy), find(t, components, clusterdir.APIServerName(0))
	if !slices.Equal(server.DependsOn, []string{Proxy}) || !slices.Equal(proxy.DependsOn, []string{Store}) {
		t.Errorf("the API server depends on %v and the proxy on %v", server.DependsOn, proxy.DependsOn)
	}
	store := find(t, components, Store)
	if !slices.Contains(server.Args, "--etcd-servers="+proxy.Address) || !slices.Contains(proxy.Args, "--endpoints="+store.Address) {
		t.Errorf("the API server does not connect to the proxy, or the proxy not to the store:\n%v\n%v", server.Args, proxy.Args)
	}

	components = buildWith(t, func(s *clusterdir.Settings) {
		s.Trace, s.TraceFile, s.TraceValues = true, "/f", clusterdir.TraceFull
		s.StoreAddress, s.StoreCAFile = "http://127.0.0.1:2379", "/ca"
	})
	proxy = find(t, components, Proxy)
	if len(proxy.DependsOn) != 0 || slices.Contains(proxy.Args, "--cacert=/ca") {
		t.Errorf("the proxy for an external store has a dependency, or a CA file for an http URL: %+v", proxy)
	}
	for _, arg := range []string{"--endpoints=http://127.0.0.1:2379", "--record=/f", "--values=full"} {
		if !slices.Contains(proxy.Args, arg) {
			t.Errorf("the arguments of the proxy do not contain %s: %v", arg, proxy.Args)
		}
	}
}

func TestSchedulerProgramFollowsSettings(t *testing.T) {
	dist := find(t, buildWith(t, func(s *clusterdir.Settings) { s.Scheduler = clusterdir.SchedulerDist }), clusterdir.SchedulerDist)
	kube := find(t, buildWith(t, func(*clusterdir.Settings) {}), clusterdir.SchedulerKube)
	if dist.Binary != "/bin/dist-scheduler" || kube.Binary != "/bin/kube-scheduler" || len(dist.Args) != len(kube.Args) {
		t.Errorf("the schedulers have wrong programs, or different numbers of arguments:\n%+v\n%+v", dist, kube)
	}
}

func TestWebhookIntakeHasItsOwnPort(t *testing.T) {
	components := buildWith(t, func(s *clusterdir.Settings) {
		s.Scheduler, s.SchedulerIntake = clusterdir.SchedulerDist, clusterdir.IntakeWebhook
	})
	args := find(t, components, clusterdir.SchedulerDist).Args
	watching := find(t, buildWith(t, func(s *clusterdir.Settings) { s.Scheduler = clusterdir.SchedulerDist }), clusterdir.SchedulerDist).Args
	for _, want := range []string{"--intake=webhook", "--intake-bind-address=" + clusterdir.Loopback} {
		if !slices.Contains(args, want) || slices.Contains(watching, want) {
			t.Errorf("%s must be set only with the webhook intake; with it: %q, without it: %q", want, args, watching)
		}
	}
	port := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--intake-port=1") })
	if port < 0 || slices.ContainsFunc(components, func(c Component) bool {
		return strings.HasSuffix(c.Address, strings.TrimPrefix(args[port], "--intake-port="))
	}) {
		t.Errorf("--intake-port is missing, or is the port of another component: %q", args)
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
			t.Fatalf("--intake-port of %s is missing, or is the port of another replica: %q", name, args)
		}
		ports[args[port]] = true
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
		t.Errorf("wrong arguments of mem_etcd: %q", mem)
	}
	if has(etcd, "--wal-mode") || !has(etcd, "--initial-cluster") || !has(etcd, "--quota-backend-bytes") {
		t.Errorf("wrong arguments of etcd: %q", etcd)
	}
	if has(none, "--data-dir") {
		t.Errorf("mem_etcd has a data directory with --wal-mode none: %q", none)
	}
}

func TestUserArgumentsComeLast(t *testing.T) {
	server := find(t, buildWith(t, func(s *clusterdir.Settings) {
		s.APIServerArgs, s.APIServerEnv = []string{"--event-ttl=1m", "max-requests-inflight=7"}, []string{"A=b"}
	}), clusterdir.APIServerName(0))
	if last := server.Args[len(server.Args)-2:]; last[0] != "--event-ttl=1m" || last[1] != "--max-requests-inflight=7" || server.Env[0] != "A=b" {
		t.Errorf("the last arguments are %q and the environment is %q", last, server.Env)
	}
}

func TestExternalStoreIsNotStarted(t *testing.T) {
	components := buildWith(t, func(s *clusterdir.Settings) { s.StoreAddress = "http://127.0.0.1:2379" })
	if components[0].Name == Store || len(components[0].DependsOn) != 0 || !slices.Contains(components[0].Args, "--etcd-servers=http://127.0.0.1:2379") {
		t.Errorf("the first component is not an API server that uses the external store: %+v", components[0])
	}
}

func TestMissingProgramIsNamed(t *testing.T) {
	_, err := Build(clusterdir.NewConfig("test", clusterdir.DefaultSettings()), clusterdir.Dir{}, func(name string) (string, error) {
		return "", errors.New("no " + name)
	})
	if err == nil || err.Error() != "no mem_etcd" {
		t.Errorf("Build returned %v, want the error for mem_etcd", err)
	}
}
