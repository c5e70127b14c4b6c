package inmemory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	upstream "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	inner "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/attach"
)

const binderName = "ReportingBinder"

// harness is a scheduler whose surroundings are in memory. Its informers never run:
// objects are put where they would put them.
type harness struct {
	sched    *upstream.Scheduler
	profile  config.KubeSchedulerProfile
	informed informers.SharedInformerFactory
	// pods is where the informer of pods keeps them.
	pods     cache.Indexer
	workload *workload
	logger   klog.Logger

	// bound are pods whose bind the scheduler is yet to hear of, at most as many as
	// are fed ahead.
	bound chan *v1.Pod
	// decided are decisions in their order. They and cycles are of the goroutine
	// that schedules, until it ends.
	decided []decision
	cycles  cycles
	ledger  *ledger
}

// decision is about the pod of a number; node is empty if none fitted.
type decision struct {
	number int32
	node   string
}

func newHarness(ctx context.Context, o Options) (*harness, error) {
	cfg, err := latest.Default()
	if err != nil {
		return nil, err
	}
	client := newClient()
	h := &harness{
		profile: cfg.Profiles[0], informed: informers.NewSharedInformerFactory(client, 0), logger: klog.FromContext(ctx),
		bound: make(chan *v1.Pod, feedAhead), ledger: newLedger(),
		decided: make([]decision, 0, o.Pods), cycles: cycles{latency: newHistogram()},
	}
	profile := h.profile.DeepCopy()
	profile.Plugins.Bind = config.PluginSet{
		Enabled: []config.Plugin{{Name: binderName}}, Disabled: []config.Plugin{{Name: names.DefaultBinder}},
	}
	binders := runtime.Registry{binderName: func(context.Context, kruntime.Object, fwk.Handle) (fwk.Plugin, error) {
		return &binder{h.bound}, nil
	}}
	recorders := func(string) events.EventRecorderLogger { return &events.FakeRecorder{} }
	if o.Scheduler == clusterdir.SchedulerDist {
		if err := attach.Prepare(); err != nil {
			return nil, err
		}
	}
	h.sched, err = upstream.New(ctx, client, h.informed, nil, recorders,
		upstream.WithProfiles(*profile), upstream.WithFrameworkOutOfTreeRegistry(binders))
	if err != nil {
		return nil, fmt.Errorf("setting up the scheduler: %w", err)
	}
	if o.Scheduler == clusterdir.SchedulerDist {
		if err := attach.Attach(h.sched, []config.KubeSchedulerProfile{*profile}); err != nil {
			return nil, fmt.Errorf("setting up the index: %w", err)
		}
	}
	h.pods = h.informed.Core().V1().Pods().Informer().GetIndexer()
	h.observe()
	return h, nil
}

// observe notes what the scheduler decides, how long it takes, and where it fails.
func (h *harness) observe() {
	next, search, fail := h.sched.NextEntity, h.sched.SchedulePod, h.sched.FailureHandler
	h.sched.NextEntity = func(logger klog.Logger) (framework.QueuedEntityInfo, error) {
		h.cycles.end(time.Now())
		entity, err := next(logger)
		h.cycles.begin(time.Now())
		return entity, err
	}
	h.sched.SchedulePod = func(
		ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *framework.QueuedPodInfo,
	) (upstream.ScheduleResult, error) {
		result, err := search(ctx, fw, state, pod)
		if _, unfit := err.(*framework.FitError); err == nil || unfit {
			h.decided = append(h.decided, decision{int32(podNumber(pod.Pod.Name)), result.SuggestedHost})
		}
		return result, err
	}
	h.sched.FailureHandler = func(
		ctx context.Context, fw framework.Framework, pod *framework.QueuedPodInfo, status *fwk.Status, info *fwk.NominatingInfo, start time.Time,
	) {
		// First, because it can be scheduled again as soon as it is back in the queue.
		h.ledger.failed(pod.Pod.UID, status)
		fail(ctx, fw, pod, status, info, start)
	}
}

// load fills the scheduler with what exists before the run.
func (h *harness) load(w *workload, progress func(done int)) error {
	h.workload = w
	core := h.informed.Core().V1()
	err := errors.Join(
		fillListers(h.informed, w),
		fill(core.Nodes().Informer(), w.nodes),
		fill(core.Pods().Informer(), w.existing),
	)
	if err != nil {
		return err
	}
	for i, node := range w.nodes {
		h.sched.Cache.AddNode(h.logger, node)
		progress(i + 1)
	}
	for _, pod := range w.existing {
		if err := h.sched.Cache.AddPod(h.logger, pod); err != nil {
			return err
		}
	}
	// The first cycle would carry out all of it; what a cycle costs then is asked.
	for _, fw := range h.sched.Profiles {
		return h.sched.Cache.UpdateSnapshot(h.logger, fw.SnapshotSharedLister().(*inner.Snapshot))
	}
	return nil
}

// fillListers puts in place what plugins read beside nodes and pods.
func fillListers(factory informers.SharedInformerFactory, w *workload) error {
	home := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: namespace, Labels: map[string]string{v1.LabelMetadataName: namespace},
	}}
	return errors.Join(
		fill(factory.Core().V1().Namespaces().Informer(), []*v1.Namespace{home}),
		fill(factory.Apps().V1().ReplicaSets().Informer(), w.replicaSets),
	)
}

func fill[T any](informer cache.SharedIndexInformer, objects []T) error {
	for _, object := range objects {
		if err := informer.GetIndexer().Add(object); err != nil {
			return err
		}
	}
	return nil
}

// submit is what happens when the watch brings a new pod.
func (h *harness) submit(ctx context.Context, pod *v1.Pod) error {
	if err := h.pods.Add(pod); err != nil {
		return err
	}
	h.sched.SchedulingQueue.Add(ctx, pod)
	return nil
}

// confirm is what happens when the watch says that a pod is bound; upstream's
// handlers of that event do the same. The pod comes with an object of its own, which
// shares what informers share.
func (h *harness) confirm(assumed *v1.Pod) error {
	pod := h.workload.pod(podNumber(assumed.Name))
	pod.Spec.NodeName, pod.ResourceVersion = assumed.Spec.NodeName, "2"
	if err := h.pods.Update(pod); err != nil {
		return err
	}
	if err := h.sched.Cache.AddPod(h.logger, pod); err != nil {
		return err
	}
	h.sched.SchedulingQueue.MoveAllToActiveOrBackoffQueue(h.logger, framework.EventAssignedPodAdd, nil, pod, nil)
	h.sched.SchedulingQueue.Delete(h.logger, pod)
	return nil
}

// binder takes a bind for done, and reports it.
type binder struct{ bound chan<- *v1.Pod }

func (b *binder) Name() string { return binderName }

func (b *binder) Bind(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) *fwk.Status {
	b.bound <- pod
	return nil
}

func newClient() kubernetes.Interface {
	client, err := kubernetes.NewForConfigAndClient(&rest.Config{QPS: -1}, &http.Client{Transport: yesServer{}})
	if err != nil {
		panic(err) // the configuration is a constant
	}
	return client
}

// yesServer takes the conditions of pods that fit nowhere.
type yesServer struct{}

func (yesServer) RoundTrip(request *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Request: request, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(`{"kind":"Pod","apiVersion":"v1"}`)),
	}, nil
}

// cycles measures scheduling cycles: from the moment that a pod is taken from the
// queue until the next one can be. Binding goes on meanwhile.
type cycles struct {
	began   time.Time
	latency *hdrhistogram.Histogram
}

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, int64(10*time.Minute/time.Microsecond), 3)
}

func (c *cycles) begin(now time.Time) { c.began = now }

func (c *cycles) end(now time.Time) {
	if !c.began.IsZero() {
		_ = c.latency.RecordValue(min(max(1, now.Sub(c.began).Microseconds()), c.latency.HighestTrackableValue()))
	}
}
