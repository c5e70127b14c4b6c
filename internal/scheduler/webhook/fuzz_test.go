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

// FuzzReview sends arbitrary reviews. It checks that reading a review completely or only up
// to the UID gives the same UID, and that the bytes of queued pods are counted.
func FuzzReview(f *testing.F) {
	pod, err := json.Marshal(&v1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: "default", UID: "u"}})
	if err != nil {
		f.Fatal(err)
	}
	asked, err := json.Marshal(&admission.AdmissionReview{TypeMeta: review, Request: &admission.AdmissionRequest{
		UID: "1", Operation: admission.Create, Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, Object: runtime.RawExtension{Raw: pod},
	}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(asked)
	f.Add([]byte(`{"kind":"AdmissionReview","request":{"object":{"request":{"uid":"2"}},"uid":"1"}}`))
	f.Add([]byte(`{"request":{"uid":"1"},"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		s := newHandler(path, func(*v1.Pod) {}, func(string) {})
		full, err := s.receive(bytes.NewReader(body))
		_, _ = uidOf(bytes.NewReader(body))
		if err == nil {
			sameWhenShort(t, body, full)
		}
		waiting := int64(0)
		for len(s.waiting) > 0 {
			waiting += int64(len(<-s.waiting))
		}
		if s.bytes.Load() != waiting {
			t.Errorf("%d bytes are queued, but %d are counted", waiting, s.bytes.Load())
		}
	})
}

// sameWhenShort checks that a review has the same UID however much of it is read, provided
// that it has no duplicate keys and no keys that differ only in case.
func sameWhenShort(t *testing.T, body []byte, full types.UID) {
	t.Helper()
	var asked admission.AdmissionReview
	if err := json.Unmarshal(body, &asked); err != nil {
		t.Fatal(err)
	}
	plain, err := json.Marshal(&asked)
	if err != nil {
		return // A field that must be an object is not.
	}
	if short, err := uidOf(bytes.NewReader(plain)); err != nil || short != full {
		t.Errorf("%q has UID %q, but %q (%v) if only the UID is read", plain, full, short, err)
	}
}
