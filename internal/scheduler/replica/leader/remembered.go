package leader

import (
	"time"

	v1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Pods of a workload often do not fit for the same reason. The leader remembers that pods of a class fit on no node, as
// long as it would place pods of the class with one answer. The next pod of the class then costs no query.

// unfit is the knowledge that pods of a class and a priority fit on no node.
type unfit struct {
	// reasons is the batch whose answer has the reasons. class is its class at that time.
	reasons *podBatch
	class   *rank.Class
	// preemption is the answer that says that evicting pods does not help either; nil if that is not known.
	preemption *wire.Answer
}

// unfitKey identifies pods for which the same nodes fit: those of a class that leave room for the same nominated pods, and
// may evict the same pods.
type unfitKey struct {
	class    string
	priority int32
}

// maxUnfit is the number of classes at which all that is known about unfit pods is forgotten.
const maxUnfit = 1024

// forgetIfChanged returns whether the cluster has changed since the last call. It then ends the current batch, and forgets
// which pods do not fit.
func (l *Search) forgetIfChanged() bool {
	changed := l.invalidated.Swap(false)
	if changed {
		l.batch = nil
	}
	if changed || l.outdated() {
		clear(l.unfit)
	}
	return changed
}

// outdated returns whether the data has changed from which the classes were made.
func (l *Search) outdated() bool { return l.Outdated.Load() || l.index != l.Cluster.Index }

// rememberUnfit remembers that a pod fits on no node. r has the reasons.
func (l *Search) rememberUnfit(r *podBatch, pod *v1.Pod) {
	if !l.isOrdinary(pod) {
		return
	}
	if len(l.unfit) >= maxUnfit {
		clear(l.unfit)
	}
	l.unfit[unfitKey{r.key, r.priority}] = &unfit{reasons: r, class: r.class.Class}
}

// recallUnfit returns what is known about a pod that fits on no node; nil if it may fit on a node.
func (l *Search) recallUnfit(profile *rank.Profile, pod *framework.PodInfo) *unfit {
	if l.forgetIfChanged(); len(l.unfit) == 0 || !l.isOrdinary(pod.GetPod()) {
		return nil
	}
	class, err := rank.ClassKey(l.Cluster, profile, pod)
	if err != nil {
		// The next query returns the error.
		return nil
	}
	key := unfitKey{string(class), corev1helpers.PodPriority(pod.GetPod())}
	known := l.unfit[key]
	if known == nil {
		return nil
	}
	if r := known.reasons; time.Now().After(r.validUntil) || !l.leavesSameRoom(r, pod.GetPod()) || known.class != r.class.Class {
		delete(l.unfit, key)
		return nil
	}
	return known
}

// isOrdinary returns whether only the class and the priority of a pod decide where it fits, and which pods it may evict. A
// pod with a nominated node may have evicted pods there already. A pod without a class is evaluated node by node.
func (l *Search) isOrdinary(pod *v1.Pod) bool {
	return pod.Status.NominatedNodeName == "" && !l.Nominations.Has(pod.UID)
}
