package controlplane

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// probeName is the label of the pods by which a takeover is observed, and the prefix of their ReplicaSets.
const probeName = "standby-probe"

// seen is a change of the store and the time at which the watch delivered it.
type seen struct {
	revision uint64
	at       time.Time
}

// takeoverWatch observes a takeover. All resources share the revisions of the store, so a pod with a later revision than
// the lease of the successor was created by the successor.
type takeoverWatch struct {
	holder string // holder of the lease when the watch began

	mu       sync.Mutex
	pods     []seen
	lease    seen  // first lease of another holder; revision 0 if there was none
	firstPod seen  // first pod after the lease
	failed   error // a watch ended too early
}

// watchTakeover watches the lease of the controller managers and the pods of the ReplicaSets until ctx ends.
func (p *standbyRun) watchTakeover(ctx context.Context) (*takeoverWatch, error) {
	leases, pods := p.Client.CoordinationV1().Leases(metav1.NamespaceSystem), p.Client.CoreV1().Pods(namespace)
	lease, err := leases.Get(ctx, clusterdir.ControllerManager, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the lease of the controller managers: %w", err)
	}
	w := &takeoverWatch{holder: ptr.Deref(lease.Spec.HolderIdentity, "")}
	if w.holder == "" {
		return nil, errors.New("no controller manager holds the lease")
	}
	leaseEvents, err := leases.Watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + clusterdir.ControllerManager, ResourceVersion: lease.ResourceVersion,
	})
	if err != nil {
		return nil, fmt.Errorf("watching the lease: %w", err)
	}
	podEvents, err := pods.Watch(ctx, metav1.ListOptions{LabelSelector: "app=" + probeName, ResourceVersion: lease.ResourceVersion})
	if err != nil {
		return nil, fmt.Errorf("watching pods: %w", err)
	}
	go w.read(ctx, leaseEvents, w.sawLease)
	go w.read(ctx, podEvents, w.sawPod)
	return w, nil
}

// read passes the events of a watch on until it ends.
func (w *takeoverWatch) read(ctx context.Context, events watch.Interface, saw func(watch.Event, seen)) {
	defer events.Stop()
	for event := range events.ResultChan() {
		object, ok := event.Object.(metav1.Object)
		if !ok {
			break
		}
		revision, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
		if err != nil {
			break
		}
		w.mu.Lock()
		saw(event, seen{revision, time.Now()})
		w.mu.Unlock()
	}
	if ctx.Err() == nil {
		w.mu.Lock()
		w.failed = errors.New("a watch ended during the takeover")
		w.mu.Unlock()
	}
}

func (w *takeoverWatch) sawLease(event watch.Event, s seen) {
	lease, ok := event.Object.(*coordinationv1.Lease)
	if !ok || w.lease.revision != 0 {
		return
	}
	if holder := ptr.Deref(lease.Spec.HolderIdentity, ""); holder != "" && holder != w.holder {
		w.lease = s
		for _, pod := range w.pods {
			w.sawFirst(pod)
		}
	}
}

func (w *takeoverWatch) sawPod(event watch.Event, s seen) {
	if event.Type == watch.Added {
		w.pods = append(w.pods, s)
		w.sawFirst(s)
	}
}

func (w *takeoverWatch) sawFirst(pod seen) {
	if w.lease.revision != 0 && pod.revision > w.lease.revision && w.firstPod.revision == 0 {
		w.firstPod = pod
	}
}

// created returns the number of pods that controllers have created.
func (w *takeoverWatch) created() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.pods)
}

// taken returns 1 when the successor has created a pod, or a watch has ended.
func (w *takeoverWatch) taken() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.firstPod.revision == 0 && w.failed == nil {
		return 0
	}
	return 1
}

// times returns when the successor had the lease, and when it had created a pod.
func (w *takeoverWatch) times() (lease, pod time.Time, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lease.at, w.firstPod.at, w.failed
}

// createReplicaSets creates ReplicaSets of one pod until ctx ends. The channel is closed when no request is pending.
func (p *standbyRun) createReplicaSets(ctx context.Context) <-chan struct{} {
	const workers = 8
	load := p.podLoad(0, workers, p.options.Rate)
	load.Workers = workers
	load.Do = func(ctx context.Context, _, worker int) error {
		_, err := p.Clients.Connection(worker).AppsV1().ReplicaSets(namespace).Create(ctx, probeReplicaSet(), metav1.CreateOptions{})
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		load.Run(ctx)
		p.Result.Errors.Merge(load.Tally)
	}()
	return done
}

func probeReplicaSet() *appsv1.ReplicaSet {
	d := deployment(probeName, 1)
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{GenerateName: probeName + "-", Namespace: namespace, Labels: d.Labels},
		Spec:       appsv1.ReplicaSetSpec{Replicas: d.Spec.Replicas, Selector: d.Spec.Selector, Template: d.Spec.Template},
	}
}

// removeReplicaSets deletes the ReplicaSets, and waits until their pods are gone.
func (p *standbyRun) removeReplicaSets(ctx context.Context) error {
	selector := metav1.ListOptions{LabelSelector: "app=" + probeName}
	background := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
	if err := p.Client.AppsV1().ReplicaSets(namespace).DeleteCollection(ctx, background, selector); err != nil {
		return fmt.Errorf("deleting ReplicaSets: %w", err)
	}
	if err := p.Client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, selector); err != nil {
		return fmt.Errorf("deleting pods: %w", err)
	}
	left := 1
	var failed error
	err := p.await(ctx, "pods of the takeover deleted", 1, func() int {
		pods, err := p.Client.CoreV1().Pods(namespace).List(ctx, selector)
		if failed = err; err == nil {
			left = len(pods.Items)
		}
		return 1 - min(left, 1)
	})
	return errors.Join(err, failed)
}
