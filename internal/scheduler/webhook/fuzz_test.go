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

// FuzzReview sends what anybody may who knows the path. What is read in full has the UID that
// is also found when little time is left, and what waits to be handed on is counted.
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
		s := newServer(path, func(*v1.Pod) {}, func(string) {})
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
			t.Errorf("%d bytes wait, and %d are counted", waiting, s.bytes.Load())
		}
	})
}

// sameWhenShort wants that a review has one UID, however much of it is read, if it is written
// as API servers write: with no key twice, and each in its own case.
func sameWhenShort(t *testing.T, body []byte, full types.UID) {
	t.Helper()
	var asked admission.AdmissionReview
	if err := json.Unmarshal(body, &asked); err != nil {
		t.Fatal(err)
	}
	plain, err := json.Marshal(&asked)
	if err != nil {
		return // An object in it is none.
	}
	if short, err := uidOf(bytes.NewReader(plain)); err != nil || short != full {
		t.Errorf("%q is for %q, and for %q (%v) when only that is read", plain, full, short, err)
	}
}
