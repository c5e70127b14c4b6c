package leases

import (
	"context"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/kubernetes/pkg/kubelet/util"
	"k8s.io/utils/clock"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	leaseDuration = 8 * time.Second
	renewInterval = leaseDuration / 40
	// collectTimeout bounds the time in which the garbage collector deletes the Lease of a deleted Node.
	collectTimeout = 5 * time.Minute
)

// testLifecycle checks what Kubernetes' e2e test NodeLease checks, and how others may change the Lease, with the Lease
// controller of a kubelet. The e2e test itself needs real kubelets, and its program contains all e2e tests: it takes
// longer to build than this repository.
func testLifecycle(t *testing.T, c *cluster, g *gateway) {
	const name = "lifecycle"
	node, err := c.admin.CoreV1().Nodes().Create(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(t, err)
	stop := c.runLeaseController(t, g, name)
	l := &lifecycle{t: t, g: g, name: name, client: c.clientset(t, g, "admin", "system:masters")}
	// It exists, belongs to its Node, and is renewed.
	first := l.renewed(nil)
	if owners := first.OwnerReferences; len(owners) != 1 || owners[0].Kind != "Node" || owners[0].APIVersion != "v1" || owners[0].UID != node.UID {
		t.Errorf("the owners are %v", owners)
	}
	l.mustBeServed()
	l.mustBeListed()
	// Others change it. The kubelet gets a conflict, and goes on.
	ctx := context.Background()
	_, err = l.leases().Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"labels":{"patched":"true"}}}`), metav1.PatchOptions{})
	must(t, err)
	patched := l.renewed(l.renewed(nil))
	if patched.Labels["patched"] != "true" || patched.UID != first.UID {
		t.Errorf("after a patch the Lease is %v", patched)
	}
	l.mustBeServed()
	l.update(func(lease *coordinationv1.Lease) { *lease.Spec.LeaseDurationSeconds = 1 })
	if updated := l.renewed(l.renewed(nil)); *updated.Spec.LeaseDurationSeconds != int32(leaseDuration.Seconds()) {
		t.Errorf("after an update the duration is %d s", *updated.Spec.LeaseDurationSeconds)
	}
	l.mustBeServed()
	// The kubelet creates a deleted Lease again.
	must(t, l.leases().Delete(ctx, name, metav1.DeleteOptions{}))
	if again := l.renewed(l.renewed(nil)); again.UID == first.UID {
		t.Error("the deleted Lease was renewed")
	}
	l.mustBeServed()
	// It ends with its Node.
	stop()
	must(t, c.admin.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}))
	testcluster.Eventually(t, collectTimeout, "the Lease is collected", func() bool {
		_, err := l.leases().Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// runLeaseController renews the Lease of a node as its kubelet does. It ends with the test, or when the result is called.
func (c *cluster) runLeaseController(t *testing.T, g *gateway, node string) (stop func()) {
	t.Helper()
	client := c.clientset(t, g, "system:node:"+node, "system:nodes")
	ctx, cancel := context.WithCancel(context.Background())
	controller := lease.NewController(clock.RealClock{}, client, node, int32(leaseDuration.Seconds()), func() {}, renewInterval, node,
		corev1.NamespaceNodeLease, util.SetNodeOwnerFunc(ctx, client, node))
	var running sync.WaitGroup
	running.Go(func() { controller.Run(ctx) })
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// clientset returns a client of the gateway with the certificate of a user, which encodes as a kubelet does.
func (c *cluster) clientset(t *testing.T, g *gateway, user string, groups ...string) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: "https://" + g.address, Transport: c.httpClient(t, true, user, groups...).Transport, UserAgent: "kubelet/v1.37.1 (linux/amd64) kubernetes/abc", QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: protobuf, AcceptContentTypes: protobuf + ",application/json"},
	})
	must(t, err)
	return client
}

// lifecycle looks at a Lease through the gateway, as the e2e test does.
type lifecycle struct {
	t      *testing.T
	g      *gateway
	name   string
	client kubernetes.Interface
}

func (l *lifecycle) leases() coordinationclient.LeaseInterface {
	return l.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
}

// renewed returns the Lease as soon as it is renewed after a former state.
func (l *lifecycle) renewed(former *coordinationv1.Lease) *coordinationv1.Lease {
	l.t.Helper()
	var current *coordinationv1.Lease
	testcluster.Eventually(l.t, startTimeout, "the Lease is renewed", func() bool {
		var err error
		current, err = l.leases().Get(context.Background(), l.name, metav1.GetOptions{})
		return err == nil && (former == nil || current.Spec.RenewTime.After(former.Spec.RenewTime.Time))
	})
	if spec := current.Spec; spec.HolderIdentity == nil || *spec.HolderIdentity != l.name || spec.LeaseDurationSeconds == nil || spec.RenewTime == nil {
		l.t.Fatalf("the Lease is %v", current)
	}
	return current
}

// mustBeServed waits until the gateway serves some renewals.
func (l *lifecycle) mustBeServed() {
	l.t.Helper()
	before := l.g.served()
	testcluster.Eventually(l.t, startTimeout, "renewals are served", func() bool { return l.g.served() >= before+3 })
}

// mustBeListed looks for the Lease in a list, and watches its next renewals from there.
func (l *lifecycle) mustBeListed() {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	options := metav1.ListOptions{FieldSelector: "metadata.name=" + l.name}
	list, err := l.leases().List(ctx, options)
	must(l.t, err)
	if len(list.Items) != 1 {
		l.t.Fatalf("%d Leases are listed, want 1", len(list.Items))
	}
	options.ResourceVersion = list.ResourceVersion
	events, err := l.leases().Watch(ctx, options)
	must(l.t, err)
	defer events.Stop()
	last := list.Items[0].Spec.RenewTime.Time
	for i := range 3 {
		event, ok := <-events.ResultChan()
		if !ok {
			l.t.Fatalf("the watch ended after %d renewals", i)
		}
		seen, ok := event.Object.(*coordinationv1.Lease)
		if !ok || !seen.Spec.RenewTime.After(last) {
			l.t.Fatalf("event %d is %s %v, which is not a renewal after %v", i, event.Type, event.Object, last)
		}
		last = seen.Spec.RenewTime.Time
	}
}

// update changes the Lease. The kubelet may renew it in between.
func (l *lifecycle) update(change func(*coordinationv1.Lease)) {
	l.t.Helper()
	testcluster.Eventually(l.t, startTimeout, "the Lease is updated", func() bool {
		current := l.renewed(nil)
		change(current)
		_, err := l.leases().Update(context.Background(), current, metav1.UpdateOptions{})
		if err != nil && !apierrors.IsConflict(err) {
			l.t.Fatalf("update the Lease: %v", err)
		}
		return err == nil
	})
}
