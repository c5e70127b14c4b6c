package gate

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

const patience = time.Minute

// TestHandlersWait adds handlers to an informer that has synced. They receive its objects after Open.
func TestHandlersWait(t *testing.T) {
	inner := informers.NewSharedInformerFactory(fake.NewSimpleClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b"}}), 0)
	running := inner.Core().V1().Pods().Informer()
	inner.Start(t.Context().Done())
	if !cache.WaitForCacheSync(t.Context().Done(), running.HasSynced) {
		t.Fatal("the informer has not synced")
	}
	f := New(inner)
	if pods, err := f.Core().V1().Pods().Lister().Pods("b").List(labels.Everything()); err != nil || len(pods) != 1 {
		t.Fatalf("the lister has %d pods, want 1: %v", len(pods), err)
	}
	received := make(chan string, 2)
	add := cache.ResourceEventHandlerFuncs{AddFunc: func(object any) { received <- object.(*corev1.Pod).Name }}
	generic, err := f.ForResource(corev1.SchemeGroupVersion.WithResource("pods"))
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []cache.SharedIndexInformer{f.Core().V1().Pods().Informer(), generic.Informer()} {
		if _, err := i.AddEventHandler(add); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case name := <-received:
		t.Fatalf("a handler received %s before the gate was opened", name)
	case <-time.After(100 * time.Millisecond):
	}
	f.Open()
	for range 2 {
		select {
		case <-received:
		case <-time.After(patience):
			t.Fatal("a handler received nothing after the gate was opened")
		}
	}
}
