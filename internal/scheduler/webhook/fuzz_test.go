package webhook

import (
	"bytes"
	"encoding/json"
	"testing"

	admission "k8s.io/api/admission/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// FuzzReview sends arbitrary reviews. It checks that reading a whole review and reading it only up
// to the UID return the same UID, and that the bytes of queued pods are counted.
func FuzzReview(f *testing.F) {
	pod, err := json.Marshal(&v1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: "default", UID: "u"}})
	if err != nil {
		f.Fatal(err)
	}
	whole, err := json.Marshal(&admission.AdmissionReview{TypeMeta: review, Request: &admission.AdmissionRequest{
		UID: "1", Operation: admission.Create, Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, Object: runtime.RawExtension{Raw: pod},
	}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add([]byte(`{"kind":"AdmissionReview","request":{"object":{"request":{"uid":"2"}},"uid":"1"}}`))
	f.Add([]byte(`{"request":{"uid":"1"},"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		h := newHandler(path, &clients{}, func(*v1.Pod) {}, func(string) {})
		uid, err := h.receive(bytes.NewReader(body))
		_, _ = uidOf(bytes.NewReader(body)) // must not panic
		if err == nil {
			checkUIDOf(t, body, uid)
		}
		queued := int64(0)
		for len(h.waiting) > 0 {
			queued += int64(len(<-h.waiting))
		}
		if counted := h.bytes.Load(); counted != queued {
			t.Errorf("%d bytes counted as queued, want %d", counted, queued)
		}
	})
}

// checkUIDOf checks that uidOf returns the UID of a review. It encodes the review again first,
// because decoders differ on duplicate keys and on keys that differ only in case.
func checkUIDOf(t *testing.T, body []byte, want types.UID) {
	t.Helper()
	var decoded admission.AdmissionReview
	if err := json.Unmarshal(body, &decoded); err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(&decoded)
	if err != nil {
		return // A field that must be an object has another type.
	}
	if got, err := uidOf(bytes.NewReader(encoded)); err != nil || got != want {
		t.Errorf("uidOf(%q) = %q, %v, want %q", encoded, got, err, want)
	}
}
