// Package offline runs schedulers on the objects of a cluster in memory, without an API server: dist-scheduler with its
// index, and beside it a stock kube-scheduler that filters and scores all nodes. [Cluster.Decide] makes a decision with
// both and compares them. [Cluster.Place] and [Cluster.Evict] change the cluster in memory.
//
// Nothing can be written to a cluster: the client of both schedulers refuses each request.
package offline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/utils/ptr"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/attach"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/clusterfile"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/guard"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/pushinformer"
)

// Options are the options of [New].
type Options struct {
	Objects *clusterfile.Objects
	// Config has the profiles.
	Config *config.KubeSchedulerConfiguration
	// Plugins are the out-of-tree plugins.
	Plugins frameworkruntime.Registry
}

// Cluster is a cluster in memory with two schedulers.
type Cluster struct {
	// Notes are what a user should know about the result.
	Notes []string

	indexed, stock *side
	parts          *attach.Parts
	// pods are the pods of the cluster, by UID. placed are those that [Cluster.Place] has placed.
	pods   map[types.UID]*v1.Pod
	placed sets.Set[types.UID]
}

// side is one of the two schedulers.
type side struct {
	name      string
	sched     *kubescheduler.Scheduler
	informers informers.SharedInformerFactory
}

// New makes the schedulers and gives them the objects. Pods without a node are not scheduled; those that are nominated to a
// node count there.
func New(ctx context.Context, o Options) (*Cluster, error) {
	if len(o.Config.Extenders) > 0 {
		return nil, errors.New("the configuration has extenders, which cannot be called for a cluster in memory; remove them from the configuration")
	}
	if err := attach.UnsupportedGate(); err != nil {
		return nil, err
	}
	if err := attach.Prepare(); err != nil {
		return nil, err
	}
	c := &Cluster{pods: map[types.UID]*v1.Pod{}, placed: sets.New[types.UID]()}
	profiles := attach.Profiles(o.Config)
	for i := range profiles {
		if p := profiles[i].PercentageOfNodesToScore; p != nil && *p > 0 && *p < 100 {
			c.Notes = append(c.Notes, fmt.Sprintf("percentageOfNodesToScore %d is ignored: all nodes are scored, so that the result does not depend on chance", *p))
		}
		profiles[i].PercentageOfNodesToScore = ptr.To(int32(100))
	}
	var err error
	if c.indexed, err = newSide(ctx, "dist-scheduler", o, profiles); err != nil {
		return nil, err
	}
	if c.stock, err = newSide(ctx, "kube-scheduler", o, profiles); err != nil {
		return nil, err
	}
	if c.parts, err = attach.New(c.indexed.sched, profiles); err != nil {
		return nil, err
	}
	limits := guard.NewLimits(func() {})
	for _, fw := range c.stock.sched.Profiles {
		if err := guard.Wrap(fw, limits); err != nil {
			return nil, err
		}
	}
	return c, c.load(o.Objects)
}

// newSide makes a kube-scheduler that is not started.
func newSide(ctx context.Context, name string, o Options, profiles []config.KubeSchedulerProfile) (*side, error) {
	client, err := newClient()
	if err != nil {
		return nil, err
	}
	s := &side{name: name, informers: informers.NewSharedInformerFactory(client, 0)}
	pushinformer.Register(s.informers, clusterfile.Examples()...)
	recorders := func(string) events.EventRecorderLogger { return &events.FakeRecorder{} }
	s.sched, err = kubescheduler.New(ctx, client, s.informers, nil, recorders,
		kubescheduler.WithProfiles(profiles...),
		kubescheduler.WithPercentageOfNodesToScore(ptr.To(int32(100))),
		kubescheduler.WithFrameworkOutOfTreeRegistry(o.Plugins),
		kubescheduler.WithParallelism(o.Config.Parallelism),
		kubescheduler.WithComponentConfigVersion(o.Config.APIVersion))
	if err != nil {
		return nil, fmt.Errorf("setting up the scheduler: %w", err)
	}
	return s, nil
}

// sides returns both schedulers.
func (c *Cluster) sides() []*side { return []*side{c.indexed, c.stock} }

// load gives all objects to both schedulers.
func (c *Cluster) load(objects *clusterfile.Objects) (err error) {
	missing := map[string]int{}
	nodes := map[string]bool{}
	objects.Each(func(object runtime.Object) {
		if err != nil {
			return
		}
		accessor, accessErr := meta.Accessor(object)
		if accessErr != nil {
			err = accessErr
			return
		}
		withVersion(accessor)
		switch typed := object.(type) {
		case *v1.Pod:
			if name := typed.Spec.NodeName; name != "" && !nodes[name] && !Terminated(typed) {
				missing[name]++
			}
			err = c.AddPod(typed)
			return
		case *v1.Node:
			nodes[typed.Name] = true
		}
		for _, s := range c.sides() {
			err = errors.Join(err, pushinformer.Push(s.informers, object))
		}
	})
	if len(missing) > 0 {
		names := slices.Sorted(maps.Keys(missing))
		c.Notes = append(c.Notes, fmt.Sprintf("pods on %d nodes that do not exist are ignored: %s", len(names), abbreviate(names)))
	}
	return err
}

// abbreviate returns the first of several names.
func abbreviate(names []string) string {
	const most = 3
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// Terminated returns whether the containers of a pod have ended. Such pods use nothing.
func Terminated(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// AddPod adds a pod to the cluster. If it has no node, it only exists, and counts on the node to which it is nominated. A
// pod without a UID gets one.
func (c *Cluster) AddPod(pod *v1.Pod) error {
	if Terminated(pod) {
		return nil
	}
	if pod.UID == "" {
		pod.UID = types.UID(fmt.Sprintf("%s/%s", pod.Namespace, pod.Name))
	}
	if other := c.pods[pod.UID]; other != nil {
		return fmt.Errorf("pods %s and %s have the same UID %s", klog.KObj(other), klog.KObj(pod), pod.UID)
	}
	withVersion(pod)
	c.pods[pod.UID] = pod
	for _, s := range c.sides() {
		if err := s.addPod(pod); err != nil {
			return fmt.Errorf("adding pod %s: %w", klog.KObj(pod), err)
		}
	}
	return nil
}

func (s *side) addPod(pod *v1.Pod) error {
	if err := s.pods().Add(pod); err != nil {
		return err
	}
	if pod.Spec.NodeName != "" {
		return s.sched.Cache.AddPod(klog.Logger{}, pod)
	}
	if pod.Status.NominatedNodeName != "" {
		s.nominate(pod)
	}
	return nil
}

// pods returns the store of the pods. Events of pods are not delivered: the caller tells the cache and the queue what to do with
// a pod.
func (s *side) pods() toolscache.Store { return s.informers.Core().V1().Pods().Informer().GetStore() }

// withVersion sets the resource version of an object that was never stored. Caches of plugins compare versions.
func withVersion(object metav1.Object) {
	if object.GetResourceVersion() == "" {
		object.SetResourceVersion("1")
	}
}

// nominate makes a pod count on the node to which it is nominated. The queue knows what a nominated pod requests only while
// the pod is in the queue. It is never taken from the queue, which does not run.
func (s *side) nominate(pod *v1.Pod) {
	s.sched.SchedulingQueue.Add(klog.NewContext(context.Background(), klog.Logger{}), pod)
}

// unnominate undoes nominate.
func (s *side) unnominate(pod *v1.Pod) { s.sched.SchedulingQueue.Delete(klog.Logger{}, pod) }

// framework returns the framework of a profile.
func (s *side) framework(profile string) framework.Framework { return s.sched.Profiles[profile] }

// refresh applies all changes, as at the start of a scheduling cycle.
func (s *side) refresh(profile string) error {
	return s.sched.Cache.UpdateSnapshot(klog.Logger{}, s.snapshot(profile))
}

func (s *side) snapshot(profile string) *schedcache.Snapshot {
	return s.framework(profile).SnapshotSharedLister().(*schedcache.Snapshot)
}

// Profile returns an error if no profile schedules a pod.
func (c *Cluster) Profile(pod *v1.Pod) error {
	if c.indexed.framework(pod.Spec.SchedulerName) != nil {
		return nil
	}
	names := slices.Sorted(maps.Keys(c.indexed.sched.Profiles))
	return fmt.Errorf("pod %s is for the scheduler %q, but the configuration has only the profiles %s; set the configuration, or spec.schedulerName of the pod",
		klog.KObj(pod), pod.Spec.SchedulerName, strings.Join(names, ", "))
}

// Held returns why the queue holds a pod back, such as a scheduling gate; "" if it does not.
func (c *Cluster) Held(ctx context.Context, pod *v1.Pod) string {
	for _, plugin := range c.indexed.framework(pod.Spec.SchedulerName).PreEnqueuePlugins() {
		if status := plugin.PreEnqueue(ctx, pod); !status.IsSuccess() {
			return fmt.Sprintf("%s: %s", plugin.Name(), status.Message())
		}
	}
	return ""
}

// Nodes returns the nodes with the pods on them, sorted by name.
func (c *Cluster) Nodes(profile string) ([]fwk.NodeInfo, error) {
	if err := c.stock.refresh(profile); err != nil {
		return nil, err
	}
	all, err := c.stock.snapshot(profile).NodeInfos().List()
	if err != nil {
		return nil, err
	}
	return slices.SortedFunc(slices.Values(all), func(a, b fwk.NodeInfo) int { return strings.Compare(a.Node().Name, b.Node().Name) }), nil
}

// DefaultProfile returns the name of the first profile.
func DefaultProfile(cfg *config.KubeSchedulerConfiguration) string {
	return cfg.Profiles[0].SchedulerName
}
