package refresh

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// Object is a pod that another replica has sent.
type Object struct {
	Pod *v1.Pod
	// Tick is the number of lists that the receiver had seen start when it last received the pod.
	Tick int64
}

// IsNewer returns whether resource version a is later than b. It returns false if they cannot be compared.
func IsNewer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}

// Lists are the lists that replicas have started and not yet ended, by sender and list ID. The value is
// the receiver's number of started lists (see [Object.Tick]) at the start of the list. Lists of one sender
// may overlap.
type Lists map[string]map[int64]int64

// maxOpen is the maximal number of lists of one sender that have not ended. An honest sender sends one after the other.
const maxOpen = 16

// Begin records the start of a list. It returns an error if the sender has not ended its earlier lists.
func (l Lists) Begin(from string, id, tick int64) error {
	if l[from] == nil {
		l[from] = map[int64]int64{}
	}
	if len(l[from]) >= maxOpen {
		return fmt.Errorf("replica %s has started %d lists of pods without ending one of them", from, maxOpen+1)
	}
	l[from][id] = tick
	return nil
}

// End records the end of a list: it calls drop for the pods in the given hash slots that were not received
// after the start of the list. It does nothing for a list whose start is not recorded, for example
// because it was sent on an earlier connection.
func (l Lists) End(from string, id int64, slots []int, pods map[types.UID]Object, drop func(*v1.Pod)) {
	startTick, started := l[from][id]
	delete(l[from], id)
	if !started {
		return
	}
	set := NewSlotSet(slots)
	for uid, pod := range pods {
		if set[membership.SlotOf(uid)] && pod.Tick < startTick {
			drop(pod.Pod)
		}
	}
}
