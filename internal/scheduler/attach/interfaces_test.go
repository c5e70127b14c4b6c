package attach_test

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	fwk "k8s.io/kube-scheduler/framework"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// reviewed has the methods of the interfaces of kube-scheduler that this repository implements or wraps, one a
// line, as they were when somebody last checked what each method must do here.
const reviewed = "testdata/interfaces.txt"

// TestInterfacesAreReviewed fails if a Kubernetes release adds a method to an interface that a type of this
// repository wraps by embedding it. Such a method would be passed to the wrapped value without notice.
// docs/upgrading-kubernetes.md says what to do.
func TestInterfacesAreReviewed(t *testing.T) {
	var lines []string
	for _, wrapped := range []reflect.Type{
		reflect.TypeFor[schedcache.Cache](), reflect.TypeFor[queue.SchedulingQueue](), reflect.TypeFor[framework.Framework](),
		reflect.TypeFor[preemption.Interface](), reflect.TypeFor[fwk.PodNominator](), reflect.TypeFor[fwk.MutableSnapshotSharedLister](),
		reflect.TypeFor[fwk.NodeInfoLister](), reflect.TypeFor[fwk.CycleState](), reflect.TypeFor[fwk.PreFilterPlugin](), reflect.TypeFor[fwk.FilterPlugin](),
		reflect.TypeFor[fwk.PostFilterPlugin](), reflect.TypeFor[fwk.PreScorePlugin](), reflect.TypeFor[fwk.ScorePlugin](), reflect.TypeFor[fwk.ReservePlugin](),
		reflect.TypeFor[fwk.PermitPlugin](), reflect.TypeFor[fwk.PreBindPlugin](), reflect.TypeFor[fwk.BindPlugin](), reflect.TypeFor[fwk.PostBindPlugin](),
		reflect.TypeFor[fwk.PreFilterExtensions](), reflect.TypeFor[fwk.ScoreExtensions](),
	} {
		for i := range wrapped.NumMethod() {
			method := wrapped.Method(i)
			lines = append(lines, wrapped.String()+"."+method.Name+strings.TrimPrefix(method.Type.String(), "func"))
		}
	}
	slices.Sort(lines)
	compareReviewed(t, reviewed, lines)
}

// compareReviewed compares lines with a file of lines that were reviewed. With UPDATE_REVIEWED=1, it writes the
// file.
func compareReviewed(t *testing.T, file string, lines []string) {
	t.Helper()
	if os.Getenv("UPDATE_REVIEWED") == "1" {
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	known := strings.Split(strings.TrimSpace(string(content)), "\n")
	for _, line := range lines {
		if !slices.Contains(known, line) {
			t.Errorf("%s is not in %s: see docs/upgrading-kubernetes.md", line, file)
		}
	}
	for _, line := range known {
		if !slices.Contains(lines, line) {
			t.Errorf("%s is in %s, but no longer in Kubernetes: see docs/upgrading-kubernetes.md", line, file)
		}
	}
}
