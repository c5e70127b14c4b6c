package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
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

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

const (
	path = "/pods/test"
	// requestUID is the UID of the request that createReview returns.
	requestUID = "request-uid"
)

// handlerFixture is a handler whose delivered pods and drop reasons are recorded.
type handlerFixture struct {
	*handler
	t       *testing.T
	mu      sync.Mutex
	pods    []*v1.Pod
	dropped map[string]int
}

func newHandlerFixture(t *testing.T) *handlerFixture {
	f := &handlerFixture{t: t, dropped: map[string]int{}}
	f.handler = newHandler(path, &clients{}, func(pod *v1.Pod) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.pods = append(f.pods, pod)
	}, func(reason string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.dropped[reason]++
	})
	return f
}

// deliverAll delivers all queued pods.
func (f *handlerFixture) deliverAll() {
	ctx, cancel := context.WithCancel(f.t.Context())
	var delivering sync.WaitGroup
	delivering.Go(func() { f.handler.deliver(ctx) })
	for deadline := time.Now().Add(schedtest.Patience); f.bytes.Load() > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	cancel()
	delivering.Wait()
}

func (f *handlerFixture) post(body io.Reader) *httptest.ResponseRecorder {
	request := httptest.NewRequest(http.MethodPost, path, body)
	request.Header.Set("Content-Type", "application/json; charset=utf-8")
	response := httptest.NewRecorder()
	f.ServeHTTP(response, request)
	return response
}

// checkAllowed checks that a response allows the request with a UID.
func (f *handlerFixture) checkAllowed(response *httptest.ResponseRecorder, uid string) {
	f.t.Helper()
	var got admission.AdmissionReview
	if err := json.Unmarshal(response.Body.Bytes(), &got); err != nil || response.Code != http.StatusOK {
		f.t.Fatalf("response %d %s (%v), want %d and a review", response.Code, response.Body, err, http.StatusOK)
	}
	if got.TypeMeta != review || got.Response == nil || !got.Response.Allowed || string(got.Response.UID) != uid {
		f.t.Fatalf("review = %+v, want request %s allowed", got, uid)
	}
}

// createReview returns a review of the creation of a pod. If change is not nil, it may change the
// request.
func createReview(t *testing.T, change func(*admission.AdmissionRequest)) string {
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
		UID: requestUID, Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
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
	f := newHandlerFixture(t)
	f.checkAllowed(f.post(strings.NewReader(createReview(t, nil))), requestUID)
	f.deliverAll()
	if len(f.pods) != 1 || f.pods[0].UID != "pod-uid" || f.pods[0].Spec.SchedulerName != v1.DefaultSchedulerName || len(f.dropped) != 0 {
		t.Errorf("delivered %v, dropped %v, want the pod with UID pod-uid and none", f.pods, f.dropped)
	}
}

func TestOtherReviewsAreAllowedAndDropped(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*admission.AdmissionRequest)
		reason string
	}{
		"dry run":          {func(r *admission.AdmissionRequest) { r.DryRun = new(true) }, dropDryRun},
		"update":           {func(r *admission.AdmissionRequest) { r.Operation = admission.Update }, dropForeign},
		"other resource":   {func(r *admission.AdmissionRequest) { r.Resource.Resource = "nodes" }, dropForeign},
		"other API group":  {func(r *admission.AdmissionRequest) { r.Resource.Group = "other" }, dropForeign},
		"subresource":      {func(r *admission.AdmissionRequest) { r.SubResource = "binding" }, dropForeign},
		"no object":        {func(r *admission.AdmissionRequest) { r.Object.Raw = nil }, dropForeign},
		"object not a pod": {func(r *admission.AdmissionRequest) { r.Object.Raw = []byte(`{"metadata":"x"}`) }, dropMalformed},
		"object is a list": {func(r *admission.AdmissionRequest) { r.Object.Raw = []byte(`[1,2]`) }, dropMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			f := newHandlerFixture(t)
			f.checkAllowed(f.post(strings.NewReader(createReview(t, test.change))), requestUID)
			f.deliverAll()
			if len(f.pods) != 0 || !maps.Equal(f.dropped, map[string]int{test.reason: 1}) {
				t.Errorf("delivered %v, dropped %v, want none and one with reason %s", f.pods, f.dropped, test.reason)
			}
		})
	}
}

func TestBadInputIsRejectedWithOneLine(t *testing.T) {
	whole := createReview(t, nil)
	for name, test := range map[string]struct {
		body string
		code int
	}{
		"empty":           {"", http.StatusBadRequest},
		"garbage":         {"\x00\xff\nGET /\n", http.StatusBadRequest},
		"truncated":       {whole[:len(whole)/2], http.StatusBadRequest},
		"no request":      {`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, http.StatusBadRequest},
		"old API version": {strings.Replace(whole, "admission.k8s.io/v1", "admission.k8s.io/v1beta1", 1), http.StatusBadRequest},
		"no uid":          {strings.Replace(whole, requestUID, "", 1), http.StatusBadRequest},
		"deeply nested":   {strings.Repeat(`{"request":`, 100_000), http.StatusBadRequest},
		"too large":       {`{"kind":"` + strings.Repeat("x", maxBody) + `"}`, http.StatusRequestEntityTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			f := newHandlerFixture(t)
			response := f.post(strings.NewReader(test.body))
			message := response.Body.String()
			if response.Code != test.code || strings.Count(message, "\n") != 1 || len(message) > 300 {
				t.Errorf("response %d %q, want %d and one line of at most 300 bytes", response.Code, message, test.code)
			}
			if len(f.waiting) != 0 || f.dropped[dropMalformed] != 1 {
				t.Errorf("%d pods queued, dropped %v, want none and one with reason %s", len(f.waiting), f.dropped, dropMalformed)
			}
		})
	}
}

func TestOtherPathsMethodsAndTypesAreRejected(t *testing.T) {
	for code, request := range map[int]*http.Request{
		http.StatusNotFound:             httptest.NewRequest(http.MethodPost, "/pods/guess", strings.NewReader(createReview(t, nil))),
		http.StatusMethodNotAllowed:     httptest.NewRequest(http.MethodGet, path, nil),
		http.StatusUnsupportedMediaType: httptest.NewRequest(http.MethodPost, path, strings.NewReader(createReview(t, nil))),
	} {
		f, response := newHandlerFixture(t), httptest.NewRecorder()
		f.ServeHTTP(response, request)
		if response.Code != code || strings.Count(response.Body.String(), "\n") != 1 || len(f.waiting) != 0 {
			t.Errorf("%s %s: response %d %q, %d pods queued, want %d, one line and none", request.Method, request.URL, response.Code, response.Body, len(f.waiting), code)
		}
	}
}

// TestRequestsAreAllowedUnderOverload checks that requests are allowed when the queue is full and
// when too many requests are being read.
func TestRequestsAreAllowedUnderOverload(t *testing.T) {
	f := newHandlerFixture(t)
	for i := range maxWaiting + 10 {
		uid := fmt.Sprint("request-", i)
		f.checkAllowed(f.post(strings.NewReader(createReview(t, func(r *admission.AdmissionRequest) { r.UID = types.UID(uid) }))), uid)
	}
	if f.dropped[dropOverload] != 10 || len(f.waiting) != maxWaiting {
		t.Errorf("%d pods queued, dropped %v, want %d and 10 with reason %s", len(f.waiting), f.dropped, maxWaiting, dropOverload)
	}
	busy := newHandlerFixture(t)
	for range maxReading {
		busy.reading <- struct{}{}
	}
	busy.checkAllowed(busy.post(strings.NewReader(createReview(t, nil))), requestUID)
	if response := busy.post(strings.NewReader(`{"request":{"uid":7}}`)); response.Code != http.StatusBadRequest {
		t.Errorf("response to a UID that is a number: %d %s, want %d", response.Code, response.Body, http.StatusBadRequest)
	}
	if busy.dropped[dropOverload] != 2 || len(busy.waiting) != 0 {
		t.Errorf("%d pods queued, dropped %v, want none and 2 with reason %s", len(busy.waiting), busy.dropped, dropOverload)
	}
}

func TestQueueIsBoundedInBytes(t *testing.T) {
	f := newHandlerFixture(t)
	const size = 1 << 20
	body := createReview(t, func(r *admission.AdmissionRequest) {
		r.Object.Raw = []byte(`{"metadata":{"annotations":{"x":"` + strings.Repeat("x", size) + `"}}}`)
	})
	for range maxWaitingBytes/size + 5 {
		f.checkAllowed(f.post(strings.NewReader(body)), requestUID)
	}
	if queued := f.bytes.Load(); queued > maxWaitingBytes || f.dropped[dropOverload] < 5 {
		t.Errorf("%d bytes queued, dropped %v, want at most %d bytes and at least 5 with reason %s", queued, f.dropped, maxWaitingBytes, dropOverload)
	}
	f.deliverAll()
	if queued := f.bytes.Load(); queued != 0 {
		t.Errorf("%d bytes counted as queued after all pods were delivered, want 0", queued)
	}
}
