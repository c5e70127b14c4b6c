package refresh

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

type Object struct {
	Pod *v1.Pod
	// tick when the pod was last told of.
	Tick int64
}

// begun is when replicas began to tell of pods anew, by who does and the number of that.
// The number matters: one may begin again before it is done.
type Lists map[string]map[int64]int64

func (b Lists) Begin(from string, id, tick int64) {
	if b[from] == nil {
		b[from] = map[int64]int64{}
	}
	b[from][id] = tick
}

// end ends what was begun: pods with UIDs in some slots that were not told of since are
// dropped.
func (b Lists) End(from string, id int64, slots []int, pods map[types.UID]Object, drop func(*v1.Pod)) {
	since, known := b[from][id]
	delete(b[from], id)
	if !known {
		return
	}
	in := NewSlotSet(slots)
	for uid, pod := range pods {
		if in[wire.Slot(uid)] && pod.Tick < since {
			drop(pod.Pod)
		}
	}
}
