package oracle

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	"k8s.io/utils/ptr"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/reference"
)

// eviction is a candidate for preemption.
type eviction struct {
	preemption.Candidate
	node    string
	victims []*v1.Pod
}

func (e eviction) Name() string                 { return e.node }
func (e eviction) Victims() *extenderv1.Victims { return &extenderv1.Victims{Pods: e.victims} }

func victim(name string, priority int32) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pod.Spec.Priority = ptr.To(priority)
	pod.Status.StartTime = &metav1.Time{}
	return pod
}

// TestJudge checks that wrong outcomes are noticed, and right ones are not.
func TestJudge(t *testing.T) {
	fits := expectation{Decision: reference.Decision{Best: sets.New("a", "b"), Feasible: 3, Scores: map[string]int64{"a": 7, "b": 7, "c": 5}}}
	hopeless := expectation{Decision: reference.Decision{FitError: &framework.FitError{}}}
	crowded := expectation{Decision: hopeless.Decision, candidates: []preemption.Candidate{
		eviction{node: "a", victims: []*v1.Pod{victim("y", 1), victim("x", 0)}},
		eviction{node: "b", victims: []*v1.Pod{victim("z", 2)}},
		eviction{node: "c", victims: []*v1.Pod{victim("v", 1), victim("u", 0)}},
	}, bestAfter: map[string]sets.Set[string]{"a": sets.New("a", "d")}}
	for name, test := range map[string]struct {
		expected expectation
		got      outcome
		problem  string
	}{
		"a best node":                   {fits, outcome{node: "b"}, ""},
		"a lower score":                 {fits, outcome{node: "c"}, "score 5; the highest score is 7"},
		"a node that does not fit":      {fits, outcome{node: "d"}, "does not fit"},
		"pending although nodes fit":    {fits, outcome{reason: "Unschedulable: "}, "fits on 3 nodes"},
		"evictions although nodes fit":  {fits, outcome{node: "a", evicted: []string{"x"}}, "[x] were evicted"},
		"pending as no node fits":       {hopeless, outcome{reason: "Unschedulable: "}, ""},
		"on a node although none fits":  {hopeless, outcome{node: "a"}, "fits on no node"},
		"an error as no node fits":      {hopeless, outcome{reason: "SchedulerError: "}, "want the reason Unschedulable"},
		"evictions that are of no use":  {hopeless, outcome{evicted: []string{"x"}}, "no eviction makes the pod fit"},
		"the best preemption":           {crowded, outcome{node: "c", evicted: []string{"u", "v"}}, ""},
		"where the victims made room":   {crowded, outcome{node: "d", evicted: []string{"x", "y"}}, ""},
		"where another node is better":  {crowded, outcome{node: "e", evicted: []string{"x", "y"}}, "the pod is on e after evicting [x y]"},
		"where others made room":        {crowded, outcome{node: "d", evicted: []string{"u", "v"}}, "the pod is on d after evicting [u v]"},
		"one victim too many":           {crowded, outcome{node: "a", evicted: []string{"x", "y", "z"}}, "after evicting [x y z]"},
		"victims of another node":       {crowded, outcome{node: "a", evicted: []string{"u", "v"}}, "after evicting [u v]"},
		"a preemption that is not best": {crowded, outcome{node: "b", evicted: []string{"z"}}, "want it on a or d after evicting [x y], or on c"},
		"no preemption":                 {crowded, outcome{reason: "Unschedulable: "}, "pending (Unschedulable: )"},
		"evictions, but pending":        {crowded, outcome{evicted: []string{"x", "y"}}, "is pending"},
	} {
		got := judge(test.expected, test.got)
		if (got == "") != (test.problem == "") || !strings.Contains(got, test.problem) {
			t.Errorf("%s: judge() = %q, want %q", name, got, test.problem)
		}
	}
}

// TestEvictionsForOtherPods has some of the evictions be for other pods.
func TestEvictionsForOtherPods(t *testing.T) {
	expected := expectation{Decision: reference.Decision{FitError: &framework.FitError{}}, candidates: []preemption.Candidate{
		eviction{node: "a", victims: []*v1.Pod{victim("y", 1), victim("x", 0)}},
	}}
	for name, test := range map[string]struct {
		all, own []string
		node     string
		right    bool
	}{
		"another pod elsewhere":                 {[]string{"x", "y", "z"}, []string{"x", "y"}, "a", true},
		"another pod evicted a victim":          {[]string{"x", "y", "z"}, []string{"x"}, "a", true},
		"nobody evicted a victim":               {[]string{"x", "z"}, []string{"x"}, "a", false},
		"this pod evicted one too many":         {[]string{"x", "y", "z"}, []string{"x", "y", "z"}, "a", false},
		"one too many, others evicted one":      {[]string{"x", "y", "z"}, []string{"x", "z"}, "a", false},
		"where another pod made room":           {[]string{"x", "y", "z"}, []string{"x", "y"}, "b", true},
		"where nobody made room":                {[]string{"x", "y", "z"}, []string{"x", "y"}, "c", false},
		"elsewhere without evictions by others": {[]string{"x", "y"}, []string{"x", "y"}, "b", false},
	} {
		fits := func(node string) bool { return node == "b" }
		got := judgeOwn(expected, outcome{node: test.node, evicted: test.all}, outcome{node: test.node, evicted: test.own}, fits)
		if (got == "") != test.right {
			t.Errorf("%s: judgeOwn() = %q, want that it is right: %t", name, got, test.right)
		}
	}
}
