package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	admission "k8s.io/api/admission/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

const path = "/pods/test"

// desk has a handler and records the pods that it delivers and drops.
type desk struct {
	*handler
	t       *testing.T
	mu      sync.Mutex
	pods    []*v1.Pod
	dropped map[string]int
}

func newDesk(t *testing.T) *desk {
	d := &desk{t: t, dropped: map[string]int{}}
	d.handler = newHandler(path, func(pod *v1.Pod) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.pods = append(d.pods, pod)
	}, func(reason string) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.dropped[reason]++
	})
	return d
}

// deliverAll delivers all queued pods.
func (d *desk) deliverAll() {
	ctx, cancel := context.WithCancel(d.t.Context())
	var handing sync.WaitGroup
	handing.Go(func() { d.handler.deliver(ctx) })
	for deadline := time.Now().Add(10 * time.Second); d.bytes.Load() > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	cancel()
	handing.Wait()
}

func (d *desk) post(body io.Reader) *httptest.ResponseRecorder {
	request := httptest.NewRequest(http.MethodPost, path, body)
	request.Header.Set("Content-Type", "application/json; charset=utf-8")
	answer := httptest.NewRecorder()
	d.ServeHTTP(answer, request)
	return answer
}

// allowed checks that a response allows the request with a UID.
func (d *desk) allowed(answer *httptest.ResponseRecorder, uid string) {
	d.t.Helper()
	var got admission.AdmissionReview
	if err := json.Unmarshal(answer.Body.Bytes(), &got); err != nil || answer.Code != http.StatusOK {
		d.t.Fatalf("%d %s: %v", answer.Code, answer.Body, err)
	}
	if got.TypeMeta != review || got.Response == nil || !got.Response.Allowed || string(got.Response.UID) != uid {
		d.t.Fatalf("answer %+v", got)
	}
}

// creation returns a review for the creation of a pod, after change.
func creation(t *testing.T, change func(*admission.AdmissionRequest)) string {
	t.Helper()
	pod := v1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod", UID: "pod-uid", CreationTimestamp: metav1.Now()},
		Spec:       v1.PodSpec{SchedulerName: v1.DefaultSchedulerName},
	}
	raw, err := json.Marshal(&pod)
	if err != nil {
		t.Fatal(err)
	}
	request := &admission.AdmissionRequest{
		UID: "asked", Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
		Resource:  metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
		Operation: admission.Create, DryRun: new(false), Object: runtime.RawExtension{Raw: raw},
	}
	if change != nil {
		change(request)
	}
	content, err := json.Marshal(admission.AdmissionReview{TypeMeta: review, Request: request})
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestPodIsDelivered(t *testing.T) {
	d := newDesk(t)
	d.allowed(d.post(strings.NewReader(creation(t, nil))), "asked")
	d.deliverAll()
	if len(d.pods) != 1 || d.pods[0].UID != "pod-uid" || d.pods[0].Spec.SchedulerName != v1.DefaultSchedulerName || len(d.dropped) != 0 {
		t.Errorf("%v, dropped %v", d.pods, d.dropped)
	}
}

func TestOtherReviewsAreAllowedAndDropped(t *testing.T) {
	for what, test := range map[string]struct {
		change func(*admission.AdmissionRequest)
		reason string
	}{
		"dry run":     {func(r *admission.AdmissionRequest) { r.DryRun = new(true) }, dropDryRun},
		"update":      {func(r *admission.AdmissionRequest) { r.Operation = admission.Update }, dropForeign},
		"node":        {func(r *admission.AdmissionRequest) { r.Resource.Resource = "nodes" }, dropForeign},
		"group":       {func(r *admission.AdmissionRequest) { r.Resource.Group = "other" }, dropForeign},
		"subresource": {func(r *admission.AdmissionRequest) { r.SubResource = "binding" }, dropForeign},
		"nothing":     {func(r *admission.AdmissionRequest) { r.Object.Raw = nil }, dropForeign},
		"no pod":      {func(r *admission.AdmissionRequest) { r.Object.Raw = []byte(`{"metadata":"x"}`) }, dropMalformed},
		"list":        {func(r *admission.AdmissionRequest) { r.Object.Raw = []byte(`[1,2]`) }, dropMalformed},
	} {
		t.Run(what, func(t *testing.T) {
			d := newDesk(t)
			d.allowed(d.post(strings.NewReader(creation(t, test.change))), "asked")
			d.deliverAll()
			if len(d.pods) != 0 || !maps.Equal(d.dropped, map[string]int{test.reason: 1}) {
				t.Errorf("%v, dropped %v", d.pods, d.dropped)
			}
		})
	}
}

func TestBadInputIsRejectedInOneLine(t *testing.T) {
	whole := creation(t, nil)
	for what, test := range map[string]struct {
		body string
		code int
	}{
		"empty":      {"", http.StatusBadRequest},
		"garbage":    {"\x00\xff\nGET /\n", http.StatusBadRequest},
		"cut":        {whole[:len(whole)/2], http.StatusBadRequest},
		"no request": {`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, http.StatusBadRequest},
		"old":        {strings.Replace(whole, "admission.k8s.io/v1", "admission.k8s.io/v1beta1", 1), http.StatusBadRequest},
		"no uid":     {strings.Replace(whole, "asked", "", 1), http.StatusBadRequest},
		"deep":       {strings.Repeat(`{"request":`, 100_000), http.StatusBadRequest},
		"large":      {`{"kind":"` + strings.Repeat("x", maxBody) + `"}`, http.StatusRequestEntityTooLarge},
	} {
		t.Run(what, func(t *testing.T) {
			d := newDesk(t)
			answer := d.post(strings.NewReader(test.body))
			said := answer.Body.String()
			if answer.Code != test.code || strings.Count(said, "\n") != 1 || len(said) > 300 {
				t.Errorf("%d %q", answer.Code, said)
			}
			if len(d.waiting) != 0 || d.dropped[dropMalformed] != 1 {
				t.Errorf("%d queued, dropped %v", len(d.waiting), d.dropped)
			}
		})
	}
}

func TestOtherRequestsAreRejected(t *testing.T) {
	for code, request := range map[int]*http.Request{
		http.StatusNotFound:             httptest.NewRequest(http.MethodPost, "/pods/guess", strings.NewReader(creation(t, nil))),
		http.StatusMethodNotAllowed:     httptest.NewRequest(http.MethodGet, path, nil),
		http.StatusUnsupportedMediaType: httptest.NewRequest(http.MethodPost, path, strings.NewReader(creation(t, nil))),
	} {
		d, answer := newDesk(t), httptest.NewRecorder()
		d.ServeHTTP(answer, request)
		if answer.Code != code || strings.Count(answer.Body.String(), "\n") != 1 || len(d.waiting) != 0 {
			t.Errorf("%d %q, want %d", answer.Code, answer.Body, code)
		}
	}
}

// TestOverload checks that all requests are allowed when the queue is full and when too
// many requests are being read.
func TestOverload(t *testing.T) {
	d := newDesk(t)
	for i := range maxWaiting + 10 {
		uid := fmt.Sprint("asked-", i)
		d.allowed(d.post(strings.NewReader(creation(t, func(r *admission.AdmissionRequest) { r.UID = types.UID(uid) }))), uid)
	}
	if d.dropped[dropOverload] != 10 || len(d.waiting) != maxWaiting {
		t.Errorf("%d queued, dropped %v", len(d.waiting), d.dropped)
	}
	busy := newDesk(t)
	for range maxReading {
		busy.reading <- struct{}{}
	}
	busy.allowed(busy.post(strings.NewReader(creation(t, nil))), "asked")
	if answer := busy.post(strings.NewReader(`{"request":{"uid":7}}`)); answer.Code != http.StatusBadRequest {
		t.Errorf("%d %s", answer.Code, answer.Body)
	}
	if busy.dropped[dropOverload] != 2 || len(busy.waiting) != 0 {
		t.Errorf("%d queued, dropped %v", len(busy.waiting), busy.dropped)
	}
}

func TestLargePodsAreBoundedByTheirBytes(t *testing.T) {
	d := newDesk(t)
	const size = 1 << 20
	body := creation(t, func(r *admission.AdmissionRequest) {
		r.Object.Raw = []byte(`{"metadata":{"annotations":{"x":"` + strings.Repeat("x", size) + `"}}}`)
	})
	for range maxWaitingBytes/size + 5 {
		d.allowed(d.post(strings.NewReader(body)), "asked")
	}
	if waiting := d.bytes.Load(); waiting > maxWaitingBytes || d.dropped[dropOverload] < 5 {
		t.Errorf("%d bytes queued, dropped %v", waiting, d.dropped)
	}
	d.deliverAll()
	if d.bytes.Load() != 0 {
		t.Errorf("%d bytes are still counted", d.bytes.Load())
	}
}

func TestTooManyConnectionsAreClosed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	bounded := &limited{Listener: listener}
	t.Cleanup(func() { listener.Close() })
	accepted := make(chan net.Conn, maxConnections+1)
	go func() {
		for {
			conn, err := bounded.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	for range maxConnections {
		dial()
		<-accepted
	}
	excess := dial()
	if err := excess.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := excess.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("a connection over the limit stays open: %v", err)
	}
	bounded.open.Store(maxConnections - 1)
	dial()
	one := <-accepted
	one.Close()
	one.Close()
	if open := bounded.open.Load(); open != maxConnections-1 {
		t.Errorf("%d open", open)
	}
}
