package inmemory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
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
	"github.com/k8s-1m/k8s-1m/internal/scheduler/pushinformer"
)

const binderName = "ReportingBinder"

// harness runs a scheduler with in-memory replacements of its environment. The informers of the scheduler
// do not run; the harness writes objects directly to their stores.
type harness struct {
	sched     *upstream.Scheduler
	profile   config.KubeSchedulerProfile
	informers informers.SharedInformerFactory
	// pods is the store of the pod informer.
	pods     cache.Indexer
	workload *workload
	logger   klog.Logger

	// bound are pods whose bind has not yet been delivered to the scheduler. Their number is at most
	// feedAhead.
	bound chan *v1.Pod
	// server answers the requests of the scheduler.
	server *apiServer
	// decided are the decisions in their order. While the scheduling goroutine runs, only it may access
	// decided and cycles.
	decided []decision
	cycles  cycles
	ledger  *ledger
}

// decision is the node for the pod with this number, or "" if no node fits.
type decision struct {
	number int32
	node   string
}

func newHarness(ctx context.Context, o Options) (*harness, error) {
	cfg, err := latest.Default()
	if err != nil {
		return nil, err
	}
	server := &apiServer{claims: map[string]*resourcev1.ResourceClaim{}}
	client := newClient(server)
	h := &harness{
		profile: cfg.Profiles[0], informers: newInformers(client), logger: klog.FromContext(ctx), server: server,
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
	h.sched, err = upstream.New(ctx, client, h.informers, nil, recorders,
		upstream.WithProfiles(*profile), upstream.WithFrameworkOutOfTreeRegistry(binders))
	if err != nil {
		return nil, fmt.Errorf("setting up the scheduler: %w", err)
	}
	if o.Scheduler == clusterdir.SchedulerDist {
		if err := attach.Attach(h.sched, []config.KubeSchedulerProfile{*profile}); err != nil {
			return nil, fmt.Errorf("setting up the index: %w", err)
		}
	}
	server.volumes = h.informers.Core().V1().PersistentVolumes().Informer().GetIndexer()
	server.volumeClaims = h.informers.Core().V1().PersistentVolumeClaims().Informer().GetIndexer()
	h.pods = h.informers.Core().V1().Pods().Informer().GetIndexer()
	h.installHooks()
	return h, nil
}

// installHooks wraps functions of the scheduler to record decisions, latencies and failures.
func (h *harness) installHooks() {
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
		// Record the failure first: fail returns the pod to the queue, and the pod may then be scheduled
		// again immediately.
		h.ledger.addFailed(pod.Pod.UID, status)
		fail(ctx, fw, pod, status, info, start)
	}
}

// load delivers the objects that exist before the run to the scheduler.
func (h *harness) load(w *workload, progress func(done int)) error {
	h.workload = w
	core := h.informers.Core().V1()
	err := errors.Join(
		fillListers(h.informers, w),
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
	// Update the snapshot now. Otherwise the first scheduling cycle would process all nodes and pods, and
	// this work would be part of the measurement.
	for _, fw := range h.sched.Profiles {
		return h.sched.Cache.UpdateSnapshot(h.logger, fw.SnapshotSharedLister().(*inner.Snapshot))
	}
	return nil
}

// fillListers fills the listers that plugins read, except those of nodes and pods.
func fillListers(factory informers.SharedInformerFactory, w *workload) error {
	ns := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: namespace, Labels: map[string]string{v1.LabelMetadataName: namespace},
	}}
	core, storage := factory.Core().V1(), factory.Storage().V1()
	return errors.Join(
		fill(core.Namespaces().Informer(), []*v1.Namespace{ns}),
		fill(factory.Apps().V1().ReplicaSets().Informer(), w.replicaSets),
		fill(core.PersistentVolumes().Informer(), w.volumes),
		fill(core.PersistentVolumeClaims().Informer(), w.volumeClaims),
		fill(storage.StorageClasses().Informer(), w.storageClasses),
		push(factory, w.csiNodes),
		push(factory, w.deviceClasses),
		push(factory, w.slices),
		push(factory, w.resourceClaims),
	)
}

// fill adds objects to the store of an informer.
func fill[T any](informer cache.SharedIndexInformer, objects []T) error {
	for _, object := range objects {
		if err := informer.GetIndexer().Add(object); err != nil {
			return err
		}
	}
	return nil
}

// push pushes objects to the informers of a factory.
func push[T kruntime.Object](factory informers.SharedInformerFactory, objects []T) error {
	for _, object := range objects {
		if err := pushinformer.Push(factory, object); err != nil {
			return err
		}
	}
	return nil
}

// deliver delivers a new pod to the scheduler, as the watch does.
func (h *harness) deliver(ctx context.Context, pod *v1.Pod) error {
	if err := h.pods.Add(pod); err != nil {
		return err
	}
	h.sched.SchedulingQueue.Add(ctx, pod)
	return nil
}

// confirm delivers a bound pod to the scheduler, as the watch does. It makes the calls of upstream's event
// handlers. The pod is a new object, as it is when a watch delivers it.
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

// binder is a bind plugin that reports a bind as successful without sending it to a server.
type binder struct{ bound chan<- *v1.Pod }

func (b *binder) Name() string { return binderName }

func (b *binder) Bind(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) *fwk.Status {
	b.bound <- pod
	return nil
}

// cycles measures the latency of scheduling cycles. A cycle starts when the scheduler has taken a pod from
// the queue, and ends when it is ready to take the next pod. Binding is not included; it runs concurrently.
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
