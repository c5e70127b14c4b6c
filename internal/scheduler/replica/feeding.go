package replica

import (
	"context"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// begin says that a replica tells of pending pods anew.
func (l *lead) begin(from string, id int64) {
	l.feeding.Lock()
	defer l.feeding.Unlock()
	l.tick++
	l.begun.note(from, id, l.tick)
}

// feed tells the scheduler what others have told.
func (l *lead) feed(from string, b *wire.Batch) error {
	if len(b.Pending)+len(b.News) == 0 {
		return nil
	}
	l.mu.Lock()
	leads := l.term > 0
	l.mu.Unlock()
	if !leads {
		return nil
	}
	l.feeding.Lock()
	defer l.feeding.Unlock()
	for i := range b.Pending {
		if !l.r.trusts(from, b.Pending[i].UID) {
			continue
		}
		if err := l.takePending(&b.Pending[i]); err != nil {
			return err
		}
	}
	for i := range b.News {
		if err := l.takeNews(&b.News[i]); err != nil {
			return err
		}
	}
	return nil
}

func (l *lead) takePending(item *wire.Item) error {
	before, is := l.pending[item.UID]
	switch {
	case len(item.Object) > 0:
		pod := &v1.Pod{}
		if err := pod.Unmarshal(item.Object); err != nil {
			return err
		}
		if !l.succeeds(pod) {
			return nil
		}
		l.pending[pod.UID] = held{pod: pod, tick: l.tick}
		if err := l.pods.indexer.Add(pod); err != nil {
			return err
		}
		if !is {
			l.pods.notify(nil, pod)
		} else if before.pod.ResourceVersion != pod.ResourceVersion {
			l.pods.notify(before.pod, pod)
		}
	case is:
		if item.Node != l.assumptions.nodeOf(item.UID) {
			l.leader.disturb()
		}
		l.forget(before.pod, item.Node)
	}
	return nil
}

// succeeds says whether a pod is the latest of its name; one that it has replaced is gone.
// Of two pods each replica may tell at its own pace, and the queue knows pods by names:
// what is told late of one would concern the other.
func (l *lead) succeeds(pod *v1.Pod) bool {
	there, is, _ := l.pods.indexer.Get(pod)
	if !is || there.(*v1.Pod).UID == pod.UID {
		return true
	}
	other := there.(*v1.Pod)
	order, err := resourceversion.CompareResourceVersion(pod.ResourceVersion, other.ResourceVersion)
	if err == nil && order < 0 {
		return false
	}
	l.forget(other, "")
	return true
}

// resolve takes away a pod that is not among those that wait any more, nobody has said
// why. One that is assumed on a node is bound there, or it is gone, and that makes a
// difference: the API server is asked.
func (l *lead) resolve(pod *v1.Pod) {
	node := l.assumptions.nodeOf(pod.UID)
	if node == "" {
		l.forget(pod, "")
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(l.r.ctx, expirePatience)
		defer cancel()
		now, err := l.r.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return
		}
		where := ""
		if err == nil && now.UID == pod.UID {
			where = now.Spec.NodeName
			if where == "" {
				return
			}
		}
		l.feeding.Lock()
		defer l.feeding.Unlock()
		if known, is := l.pending[pod.UID]; is {
			l.forget(known.pod, where)
		}
	}()
}

// forget takes away a pod that waits no longer, because it is on a node, or gone.
func (l *lead) forget(pod *v1.Pod, node string) {
	delete(l.pending, pod.UID)
	// Another may have come under the name.
	if there, is, _ := l.pods.indexer.Get(pod); is && there.(*v1.Pod).UID == pod.UID {
		_ = l.pods.indexer.Delete(pod)
	}
	if node == "" {
		l.pods.notify(pod, nil)
		return
	}
	bound := *pod
	bound.Spec.NodeName = node
	l.pods.notify(pod, &bound)
}

// refreshed forgets the pending pods with UIDs in some slots that were not told of since.
func (l *lead) refreshed(from string, id int64, slots []int) {
	l.feeding.Lock()
	defer l.feeding.Unlock()
	l.begun.end(from, id, slots, l.pending, l.resolve)
}

func (l *lead) takeNews(news *wire.News) error {
	l.leader.disturb()
	if news.Node {
		before, after, err := decoded[v1.Node](news)
		if err == nil {
			notifyTyped(l.nodes, before, after)
		}
		return err
	}
	before, after, err := decoded[v1.Pod](news)
	if err == nil {
		notifyTyped(l.pods, before, after)
	}
	return err
}

// readable is a pointer to an object that reads itself.
type readable[T any] interface {
	*T
	Unmarshal([]byte) error
}

func decoded[T any, P readable[T]](news *wire.News) (before, after P, err error) {
	for _, part := range []struct {
		data []byte
		to   *P
	}{{news.Before, &before}, {news.After, &after}} {
		if len(part.data) > 0 && err == nil {
			*part.to = new(T)
			err = (*part.to).Unmarshal(part.data)
		}
	}
	return before, after, err
}

func notifyTyped[P comparable](informer *fedInformer, before, after P) {
	var none P
	var was, is any
	if before != none {
		was = before
	}
	if after != none {
		is = after
	}
	if was != nil || is != nil {
		informer.notify(was, is)
	}
}
