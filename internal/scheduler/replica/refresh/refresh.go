package refresh

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// Object is a pod that another replica has sent.
type Object struct {
	Pod *v1.Pod
	// Tick is the value of the receiver's list counter when the pod was last sent.
	Tick int64
}

// Lists are the lists that replicas have started to send, by sender and list ID, with the
// receiver's list counter at the start. A sender may start another list before it has completed
// one.
type Lists map[string]map[int64]int64

// Begin notes that a sender has started a list.
func (b Lists) Begin(from string, id, tick int64) {
	if b[from] == nil {
		b[from] = map[int64]int64{}
	}
	b[from][id] = tick
}

// End completes a list: it calls drop for the pods with UIDs in some hash slots that were not sent
// since the list was started. It does nothing for a list that was not started on this connection.
func (b Lists) End(from string, id int64, slots []int, pods map[types.UID]Object, drop func(*v1.Pod)) {
	since, known := b[from][id]
	delete(b[from], id)
	if !known {
		return
	}
	in := NewSlotSet(slots)
	for uid, pod := range pods {
		if in[membership.SlotOf(uid)] && pod.Tick < since {
			drop(pod.Pod)
		}
	}
}
