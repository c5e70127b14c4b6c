package replica

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// newFullGroup starts replicas that share nodes of four CPUs, each full with a pod of priority 0. It calls
// attempted after each attempt of the leader to schedule a pod.
func newFullGroup(t *testing.T, nodes int, attempted func(g *group, pod *v1.Pod, err error)) (*group, []*v1.Pod) {
	t.Helper()
	var all []*v1.Node
	for i := range nodes {
		all = append(all, schedtest.PlainNode(fmt.Sprintf("node-%d", i), "4"))
	}
	g := startReplicas(t, make([]bool, 2), all...)
	sched := g.replicas[0].sched
	schedule := sched.SchedulePod
	sched.SchedulePod = func(ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *framework.QueuedPodInfo) (kubescheduler.ScheduleResult, error) {
		result, err := schedule(ctx, fw, state, pod)
		attempted(g, pod.Pod, err)
		return result, err
	}
	g.lead(0)
	var victims []*v1.Pod
	for i := range nodes {
		victims = append(victims, schedtest.PlainPod(fmt.Sprintf("victim-%d", i), "4"))
		g.API.Put(victims[i])
		g.AwaitBound(victims[i].Name)
	}
	g.awaitConsistent()
	return g, victims
}

func urgentPod(name, cpu string) *v1.Pod {
	pod := schedtest.PlainPod(name, cpu)
	pod.Spec.Priority = new(int32)
	*pod.Spec.Priority = 10
	return pod
}

// TestNodeThatFitsMeanwhileNeedsNoEviction deletes a pod after the leader has found that an urgent pod fits on
// no node, and before the preemption. The urgent pod takes the place of the deleted pod; no other pod is
// evicted.
func TestNodeThatFitsMeanwhileNeedsNoEviction(t *testing.T) {
	failed := false
	g, victims := newFullGroup(t, 2, func(g *group, pod *v1.Pod, err error) {
		if pod.Name != "urgent" || err == nil || failed {
			return
		}
		failed = true
		g.API.Remove(schedtest.PlainPod("victim-0", "4"))
		g.Eventually("the owner has removed the pod", func() error {
			if pods := g.replicas[0].holder.Counts().Pods + g.replicas[1].holder.Counts().Pods; pods != 1 {
				return fmt.Errorf("the owners have %d pods", pods)
			}
			return nil
		})
	})
	freed := g.API.Pod("default/victim-0").Spec.NodeName
	urgent := urgentPod("urgent", "4")
	g.API.Put(urgent)
	if node := g.AwaitBound("urgent"); node != freed {
		t.Errorf("the urgent pod is on %s, want %s", node, freed)
	}
	if g.API.Pod("default/"+victims[1].Name) == nil {
		t.Errorf("pod %s was evicted, want it running", victims[1].Name)
	}
	g.awaitConsistent()
}

// TestPreemptorWaitsForItsLastVictim evicts a pod that takes time to terminate. The preempting pod is not
// retried before the victim is deleted.
func TestPreemptorWaitsForItsLastVictim(t *testing.T) {
	var attempts atomic.Int64
	g, victims := newFullGroup(t, 1, func(_ *group, pod *v1.Pod, _ error) {
		if pod.Name == "urgent" {
			attempts.Add(1)
		}
	})
	g.API.Mu.Lock()
	g.API.OnDelete = func(pod *v1.Pod) bool {
		terminating := pod.DeepCopy()
		terminating.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		g.API.Put(terminating)
		return false
	}
	g.API.Mu.Unlock()
	g.API.Put(urgentPod("urgent", "4"))
	g.Eventually("the victim is being deleted", func() error {
		if g.API.Pod("default/victim-0").DeletionTimestamp == nil {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	time.Sleep(time.Second)
	if n := attempts.Load(); n != 1 {
		t.Errorf("%d attempts to schedule the preempting pod before its victim was deleted, want 1", n)
	}
	g.API.Remove(victims[0])
	g.AwaitBound("urgent")
	g.awaitConsistent()
}

// TestPreemptionIsRetriedWhenAllAnswer delays the answers of an owner after the leader has found that an urgent pod
// fits on no node, and before the preemption, which needs the counters of all owners. The pod preempts as soon as all
// owners answer.
func TestPreemptionIsRetriedWhenAllAnswer(t *testing.T) {
	failed := false
	g, _ := newFullGroup(t, 4, func(g *group, pod *v1.Pod, err error) {
		if pod.Name == "urgent" && err != nil && !failed {
			failed = true
			g.replicas[1].delayAnswers()
		}
	})
	urgent := urgentPod("urgent", "4")
	urgent.Labels = map[string]string{"group": "urgent"}
	urgent.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
		TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: urgent.Labels},
	}}}}
	g.API.Put(urgent)
	g.AwaitBound("urgent")
}

// delayAnswers delays the answers of an owner: for longer than the leader waits for them, and for less than the time
// after which the owner loses its nodes.
func (r *testReplica) delayAnswers() {
	const delay = 2500 * time.Millisecond
	delayed := make(chan struct{})
	go r.holder.Exclusively(func() {
		close(delayed)
		time.Sleep(delay)
	})
	<-delayed
}

// TestLateOwnerCausesNoSecondEviction retries an urgent pod while its victim terminates. It delays the answers of the
// owner of the victim's node after the leader has found again that the pod fits on no node, and before the preemption.
// The leader must not evict a pod on the node of another owner instead.
func TestLateOwnerCausesNoSecondEviction(t *testing.T) {
	const late = 1
	// unfit is the number of attempts in which all owners answered.
	var unfit atomic.Int64
	g, victims := newFullGroup(t, 12, func(g *group, pod *v1.Pod, err error) {
		if pod.Name == "urgent" && errors.As(err, new(*framework.FitError)) && unfit.Add(1) == 2 {
			g.replicas[late].delayAnswers()
		}
	})
	// The first victim is on a node of the late owner, because the others have a higher priority.
	others := 0
	for _, victim := range victims {
		bound := g.API.Pod("default/" + victim.Name)
		owner := g.ownerOf(bound.Spec.NodeName)
		if owner == g.replicas[late] {
			continue
		}
		others++
		important := bound.DeepCopy()
		important.Spec.Priority = new(int32)
		*important.Spec.Priority = 5
		g.API.Put(important)
		g.Eventually("the owner knows the priority of the pod", func() error {
			info, err := owner.holder.NodeInfo(bound.Spec.NodeName)
			if err == nil && corev1helpers.PodPriority(info.Pods[0].GetPod()) != 5 {
				err = errors.New("it does not")
			}
			return err
		})
	}
	if others == 0 || others == len(victims) {
		t.Fatalf("the other owner has %d of %d nodes, want some", others, len(victims))
	}
	evicted := make(chan *v1.Pod, len(victims))
	g.API.Mu.Lock()
	g.API.OnDelete = func(pod *v1.Pod) bool {
		terminating := pod.DeepCopy()
		terminating.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		terminating.Status.Conditions = append(terminating.Status.Conditions, v1.PodCondition{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler,
		})
		g.API.Put(terminating)
		evicted <- terminating
		return false
	}
	g.API.Mu.Unlock()
	g.API.Put(urgentPod("urgent", "4"))
	victim := <-evicted
	g.Eventually("the owner knows that the victim terminates, and the pod is nominated", func() error {
		info, err := g.replicas[late].holder.NodeInfo(victim.Spec.NodeName)
		if err == nil && (info.Pods[0].GetPod().DeletionTimestamp == nil || g.API.Pod("default/urgent").Status.NominatedNodeName == "") {
			err = errors.New("it does not")
		}
		return err
	})
	// A new connection retries all unschedulable pods.
	g.replicas[0].leader.Connected(g.replicas[late].member.Self())
	g.Eventually("the pod is retried when all owners answer", func() error {
		if n := unfit.Load(); n < 3 && len(evicted) == 0 {
			return fmt.Errorf("%d attempts in which all answered", n)
		}
		return nil
	})
	if len(evicted) > 0 {
		second := <-evicted
		t.Fatalf("%s on %s was evicted too, want only %s on %s", second.Name, second.Spec.NodeName, victim.Name, victim.Spec.NodeName)
	}
	g.API.Remove(victim)
	if node := g.AwaitBound("urgent"); node != victim.Spec.NodeName {
		t.Errorf("the urgent pod is on %s, want the node %s of its victim", node, victim.Spec.NodeName)
	}
	g.awaitConsistent()
}
