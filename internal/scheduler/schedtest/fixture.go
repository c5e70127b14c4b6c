package schedtest

import (
	"context"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/attach"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
)

// Fixture is a scheduler with running informers and an API server in memory.
type Fixture struct {
	T         *testing.T
	Ctx       context.Context
	API       *API
	Sched     *kubescheduler.Scheduler
	Parts     *attach.Parts
	Ranker    *rank.Ranker
	Informers informers.SharedInformerFactory
	// Stop stops the scheduler that Run has started, and waits until its last cycle has ended.
	Stop func()
}

// New returns a fixture whose scheduler retries pods without backoff. Binds go to the API directly,
// because the fake client handles one call at a time.
func New(t *testing.T, nodes []*v1.Node, options ...kubescheduler.Option) *Fixture {
	t.Helper()
	server := NewAPI()
	for _, node := range nodes {
		server.Put(node)
	}
	profile := DefaultProfile(t).DeepCopy()
	profile.Plugins.Bind = config.PluginSet{Enabled: []config.Plugin{{Name: "Binder"}}, Disabled: []config.Plugin{{Name: pluginnames.DefaultBinder}}}
	registry := frameworkruntime.Registry{"Binder": func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
		return Binder{server}, nil
	}}
	return newWatching(t, server, profile, append(options, kubescheduler.WithFrameworkOutOfTreeRegistry(registry),
		kubescheduler.WithPodInitialBackoffSeconds(0), kubescheduler.WithPodMaxBackoffSeconds(0))...)
}

// NewWithFilter returns a fixture with an out-of-tree filter plugin.
func NewWithFilter(t *testing.T, nodes []*v1.Node, filter fwk.FilterPlugin) *Fixture {
	t.Helper()
	server := NewAPI()
	for _, node := range nodes {
		server.Put(node)
	}
	profile := DefaultProfile(t).DeepCopy()
	profile.Plugins.Filter.Enabled = append(profile.Plugins.Filter.Enabled, config.Plugin{Name: filter.Name()})
	if _, ok := filter.(fwk.PreFilterPlugin); ok {
		profile.Plugins.PreFilter.Enabled = append(profile.Plugins.PreFilter.Enabled, config.Plugin{Name: filter.Name()})
	}
	registry := frameworkruntime.Registry{filter.Name(): func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return filter, nil }}
	return newWatching(t, server, profile, kubescheduler.WithFrameworkOutOfTreeRegistry(registry))
}

// Binder is a bind plugin that calls the API server in memory without a client.
type Binder struct{ API *API }

// Name returns the name of the plugin.
func (b Binder) Name() string { return "Binder" }

// Bind binds a pod to a node.
func (b Binder) Bind(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	binding := &v1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}}
	binding.Target.Name = node
	return fwk.AsStatus(b.API.Bind(binding))
}

// newWatching returns a fixture whose informers watch the API server.
func newWatching(t *testing.T, api *API, profile *config.KubeSchedulerProfile, options ...kubescheduler.Option) *Fixture {
	t.Helper()
	client := api.Client()
	f := newFixture(t, api, client, kubescheduler.NewInformerFactory(client, 0, nil), profile, options...)
	f.Informers.Start(f.Ctx.Done())
	f.Informers.WaitForCacheSync(f.Ctx.Done())
	f.Must(f.Sched.WaitForHandlersSync(f.Ctx))
	return f
}

// NewScripted returns a fixture whose informers receive events directly from the API server,
// without a watch.
func NewScripted(t *testing.T, api *API) *Fixture {
	t.Helper()
	client := api.Client()
	return newFixture(t, api, client, api.scriptedFactory(client), nil)
}

func newFixture(
	t *testing.T, api *API, client kubernetes.Interface, factory informers.SharedInformerFactory, profile *config.KubeSchedulerProfile, options ...kubescheduler.Option,
) *Fixture {
	t.Helper()
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	t.Cleanup(cancel)
	if profile == nil {
		profile = DefaultProfile(t)
	}
	f := &Fixture{T: t, Ctx: ctx, API: api, Informers: factory}
	recorders := func(string) events.EventRecorderLogger { return &events.FakeRecorder{} }
	var err error
	f.Sched, err = kubescheduler.New(ctx, client, f.Informers, nil, recorders,
		append([]kubescheduler.Option{kubescheduler.WithProfiles(*profile)}, options...)...)
	f.Must(err)
	f.Parts, err = attach.New(f.Sched, []config.KubeSchedulerProfile{*profile})
	f.Must(err)
	f.Ranker = f.Parts.Ranker
	return f
}

// DefaultProfile returns kube-scheduler's default profile.
func DefaultProfile(t *testing.T) *config.KubeSchedulerProfile {
	t.Helper()
	cfg, err := latest.Default()
	if err != nil {
		t.Fatal(err)
	}
	return &cfg.Profiles[0]
}

// Must fails the test if there is an error.
func (f *Fixture) Must(err error) {
	f.T.Helper()
	if err != nil {
		f.T.Fatal(err)
	}
}

// Run schedules until the test ends or Stop is called.
func (f *Fixture) Run() {
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(f.Ctx)
	go func() {
		defer close(done)
		wait.UntilWithContext(ctx, f.Sched.ScheduleOne, 0)
	}()
	f.Sched.SchedulingQueue.Run(klog.Logger{})
	stop := sync.OnceFunc(func() {
		cancel()
		f.Sched.SchedulingQueue.Close()
		<-done
	})
	f.Stop = stop
	f.T.Cleanup(stop)
}

// Refresh applies all pending changes, as the start of a scheduling cycle does. It is for tests
// that do not call Run.
func (f *Fixture) Refresh() {
	f.T.Helper()
	f.Must(f.Sched.Cache.UpdateSnapshot(klog.Logger{}, f.Snapshot()))
}

// Snapshot returns the snapshot that plugins read.
func (f *Fixture) Snapshot() *schedcache.Snapshot {
	return f.Sched.Profiles[v1.DefaultSchedulerName].SnapshotSharedLister().(*schedcache.Snapshot)
}

// NodeInfo returns a node of the cache. It is for tests in which no scheduling cycle runs.
func (f *Fixture) NodeInfo(name string) *framework.NodeInfo {
	f.T.Helper()
	info, err := f.Sched.Cache.GetNode(name)
	f.Must(err)
	return info
}

// ScheduleAndAssume finds a node for a pod and assumes the pod there.
func (f *Fixture) ScheduleAndAssume(pod *v1.Pod) {
	f.T.Helper()
	info, err := framework.NewPodInfo(pod)
	f.Must(err)
	queued := &framework.QueuedPodInfo{PodInfo: info}
	result, err := f.Sched.SchedulePod(f.Ctx, f.Sched.Profiles[v1.DefaultSchedulerName], framework.NewCycleState(), queued)
	f.Must(err)
	assumed := pod.DeepCopy()
	assumed.Spec.NodeName = result.SuggestedHost
	f.Must(f.Sched.Cache.AssumePod(klog.Logger{}, assumed))
	f.Refresh()
}
