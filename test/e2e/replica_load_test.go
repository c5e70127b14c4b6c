package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/k8s-1m/k8s-1m/internal/cluster/verify"
)

// churn continuously creates and deletes groups of pods of several kinds. The capacity of the cluster
// suffices for all existing pods except fillers, so a pod waits at most until the scheduler has processed
// deletions. Fillers have a low priority and use the same host port in one zone as urgent pods, which evict
// them.
type churn struct {
	client kubernetes.Interface
	rand   *rand.Rand
	// stepping is locked during a step, so that audit can pause the churn.
	stepping sync.Mutex
	groups   []group
	created  int
	// bound is the node of each pod that was seen bound.
	bound map[types.UID]string
	// room is the number of nodes on which fillers and urgent pods may run, one of them on each node.
	room int
	// urgent is the number of urgent pods that were created. evicted are the fillers that were seen evicted.
	// running is the number of bound pods at the last audit.
	urgent, running int
	evicted         map[types.UID]bool
}

// group is a set of pods that are created and deleted together.
type group struct {
	kind string
	pods []*corev1.Pod
}

const (
	// churnGroups is the maximum number of groups. churnInterval is the time between two steps.
	churnGroups   = 60
	churnInterval = 120 * time.Millisecond
	// churnBig and churnPorts are the maximum numbers of groups of the kinds "big" and "ports". They are
	// small, because the capacity of the cluster suffices for few such pods.
	churnBig, churnPorts = 12, 6
	// bigCPU is the CPU request of a pod of the kind "big". A node has 32 cores.
	bigCPU = "20"
	// Fillers and urgent pods run in fillerZone.
	fillerZone = "zone-0"
	filler     = "filler"
	urgent     = "urgent"
)

var churnKinds = []string{"plain", "spread", "zones", "hosts", "ports", "big", filler, urgent}

// prepare creates the priority classes of fillers and urgent pods, and counts the nodes of their zone.
func (c *churn) prepare(t *testing.T) {
	t.Helper()
	for name, value := range map[string]int32{filler: -10, urgent: 10} {
		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
		_, err := c.client.SchedulingV1().PriorityClasses().Create(t.Context(), class, metav1.CreateOptions{})
		must(t, err)
	}
	nodes, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{LabelSelector: corev1.LabelTopologyZone + "=" + fillerZone})
	must(t, err)
	if c.room = len(nodes.Items); c.room < 4 {
		t.Fatalf("%d nodes in %s, want at least 4", c.room, fillerZone)
	}
}

// isFull returns whether no further group of a kind may be created. count are the numbers of groups by kind.
func (c *churn) isFull(kind string, count map[string]int) bool {
	limits := map[string]int{"big": churnBig, "ports": churnPorts, filler: c.room / 2, urgent: c.room / 4}
	limit, limited := limits[kind]
	return len(c.groups) >= churnGroups || limited && count[kind] >= limit
}

// run performs steps until ctx is done. It ends only between two steps, so that the set of existing pods is
// known.
func (c *churn) run(ctx context.Context) {
	for ctx.Err() == nil {
		c.stepping.Lock()
		step, done := context.WithTimeout(context.WithoutCancel(ctx), patience)
		c.step(step)
		done()
		c.stepping.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(churnInterval):
		}
	}
}

// step creates a group of a random kind. If the maximum number of groups, or of groups of this kind,
// exists, it deletes a random group instead.
func (c *churn) step(ctx context.Context) {
	count := map[string]int{}
	for _, g := range c.groups {
		count[g.kind]++
	}
	kind := churnKinds[c.rand.IntN(len(churnKinds))]
	if !c.isFull(kind, count) {
		c.groups = append(c.groups, c.create(ctx, kind))
		return
	}
	which := c.rand.IntN(len(c.groups))
	c.delete(ctx, c.groups[which])
	c.groups = slices.Delete(c.groups, which, which+1)
}

// create creates a group of a kind. It repeats failed requests.
func (c *churn) create(ctx context.Context, kind string) group {
	c.created++
	name := fmt.Sprintf("%s-%d", kind, c.created)
	sizes := map[string]int{"plain": 6, "spread": 6, "zones": 3, "hosts": 5, "ports": 4, "big": 2, filler: 2, urgent: 2}
	if kind == urgent {
		c.urgent += sizes[kind]
	}
	g := group{kind: kind}
	for i := range sizes[kind] {
		pod := newChurnPod(kind, name, i)
		for ctx.Err() == nil {
			created, err := c.client.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, pod, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				created, err = c.client.CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, pod.Name, metav1.GetOptions{})
			}
			if err == nil {
				g.pods = append(g.pods, created)
				break
			}
			time.Sleep(pollInterval)
		}
	}
	return g
}

func newChurnPod(kind, name string, number int) *corev1.Pod {
	labels := map[string]string{"group": name}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", name, number), Labels: labels},
		Spec: corev1.PodSpec{SchedulerName: "dist-scheduler", TerminationGracePeriodSeconds: new(int64), Containers: []corev1.Container{{
			Name: "main", Image: "pause",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}},
		}}},
	}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	apart := func(key string) {
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{LabelSelector: selector, TopologyKey: key}},
		}}
	}
	switch kind {
	case "spread":
		pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector,
		}}
	case "zones":
		apart(corev1.LabelTopologyZone)
	case "hosts":
		apart(corev1.LabelHostname)
	case "ports":
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}
	case filler, urgent:
		pod.Spec.PriorityClassName = kind
		pod.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: fillerZone}
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 9090}}
	case "big":
		pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(bigCPU)
	}
	return pod
}

// delete deletes a group. It repeats failed requests.
func (c *churn) delete(ctx context.Context, g group) {
	now := int64(0)
	for _, pod := range g.pods {
		for ctx.Err() == nil {
			err := c.client.CoreV1().Pods(metav1.NamespaceDefault).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
			if err == nil || apierrors.IsNotFound(err) {
				break
			}
			time.Sleep(pollInterval)
		}
	}
}

// probe creates groups of some kinds and waits until all their pods are bound. It returns how long after the
// time since this was the case.
func (c *churn) probe(t *testing.T, since time.Time, limit time.Duration) time.Duration {
	t.Helper()
	var probes []group
	for _, kind := range []string{"plain", "spread", "zones"} {
		c.stepping.Lock()
		probes = append(probes, c.create(t.Context(), kind))
		c.stepping.Unlock()
	}
	eventually(t, limit, "pods created after the fault are bound", func() error {
		for _, g := range probes {
			for _, pod := range g.pods {
				now, err := c.client.CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), pod.Name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				if now.Spec.NodeName == "" {
					return fmt.Errorf("%s is not bound", pod.Name)
				}
			}
		}
		return nil
	})
	took := time.Since(since)
	c.stepping.Lock()
	c.groups = append(c.groups, probes...)
	c.stepping.Unlock()
	return took
}

// audit pauses the churn, waits until every pod is bound, and verifies the cluster. It fails if more fillers
// were evicted than urgent pods and faults explain: an urgent pod needs one eviction, and a fault may cause one
// more. It returns the number of bound pods.
func (c *churn) audit(t *testing.T, limit time.Duration, faults int) int {
	t.Helper()
	c.stepping.Lock()
	defer c.stepping.Unlock()
	want := map[types.UID]string{}
	for _, g := range c.groups {
		for _, pod := range g.pods {
			want[pod.UID] = pod.Name
		}
	}
	eventually(t, limit, "every pod is bound", func() error { return c.allBound(t, want) })
	cluster, err := verify.Read(t.Context(), c.client, func(int) {}, func(int) {})
	must(t, err)
	report, err := cluster.Check()
	must(t, err)
	for _, v := range report.Violations {
		t.Errorf("%s: %s %s: %s", v.Rule, v.Node, v.Pod, v.Message)
	}
	if len(c.evicted) > c.urgent+faults {
		t.Errorf("%d fillers were evicted for %d urgent pods during %d faults", len(c.evicted), c.urgent, faults)
	}
	if t.Failed() {
		t.FailNow()
	}
	return c.running
}

// allBound returns an error unless the existing pods are those in want and are bound. It fails the test if
// a pod was lost or bound to a second node.
func (c *churn) allBound(t *testing.T, want map[types.UID]string) error {
	list, err := c.client.CoreV1().Pods(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	missing, waiting, waitingFillers, onPort := maps.Clone(want), []string{}, 0, 0
	c.running = 0
	for _, pod := range list.Items {
		delete(missing, pod.UID)
		switch before := c.bound[pod.UID]; {
		case want[pod.UID] == "":
			return fmt.Errorf("%s still exists", pod.Name)
		case pod.Spec.NodeName == "" && pod.Spec.PriorityClassName == filler:
			waitingFillers++
		case pod.Spec.NodeName == "":
			waiting = append(waiting, pod.Name)
		case before != "" && before != pod.Spec.NodeName:
			t.Fatalf("%s was bound to %s, and then to %s", pod.Name, before, pod.Spec.NodeName)
		default:
			c.bound[pod.UID] = pod.Spec.NodeName
			c.running++
			if pod.Spec.PriorityClassName == filler || pod.Spec.PriorityClassName == urgent {
				onPort++
			}
		}
	}
	for uid, name := range missing {
		if strings.HasPrefix(name, filler) {
			c.evicted[uid] = true
			delete(missing, uid)
		}
	}
	if len(missing) > 0 {
		t.Fatalf("pods that were created do not exist: %v", slices.Collect(maps.Values(missing)))
	}
	if len(waiting) > 0 {
		return fmt.Errorf("%d of %d pods are not bound: %v", len(waiting), len(want), waiting[:min(len(waiting), 5)])
	}
	if waitingFillers > 0 && onPort < c.room {
		return fmt.Errorf("%d fillers are not bound, although %d of %d nodes have room for one", waitingFillers, c.room-onPort, c.room)
	}
	return nil
}
