package gateway

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/pflag"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

func TestNodePathOnly(t *testing.T) {
	for text, valid := range map[string]bool{"": true, "renewals": true, "renewals,detection": true, "detection,": true, "failure,watches,reconnects": true, "connections": false, "cpu": false} {
		o := defaultNodePathOptions()
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		o.AddFlags(flags)
		if err := flags.Parse([]string{"--only", text}); err != nil {
			t.Fatal(err)
		}
		if err := o.Validate(); (err == nil) != valid {
			t.Errorf("--only %q: error %v, want valid: %v", text, err, valid)
		}
	}
}

// The help lists the rows that exist.
func TestNodePathHelp(t *testing.T) {
	for _, name := range nodePathRowNames() {
		if !strings.Contains(nodePath.Long, "\n  "+name+" ") {
			t.Errorf("the help does not list the row %s", name)
		}
	}
}

// A run fails at medium scale if a limit is missed that must be met.
func TestNodePathVerdicts(t *testing.T) {
	cost := func(micros float64, renewals int) map[string]renewalCost {
		c := renewalCost{renewals: renewals, micros: map[string]float64{component.Store: micros}}
		return map[string]renewalCost{loads[0]: c, loads[1]: c}
	}
	r := &nodePathRun{
		bench: &bench{Run: &experiment.Run{Result: &experiment.Result{}, Scale: experiment.Scale{Factor: 1}}},
		costs: map[string]map[string]renewalCost{kubeGateway: cost(50, 10), direct: cost(1500, 10)},
		detected: map[string][]detection{
			kubeGateway: {{served: 100 * time.Millisecond}, {served: 400 * time.Millisecond}},
		},
		failures: map[string]failures{kubeGateway: {seconds: []float64{52, 54, 61}}, direct: {seconds: []float64{50, 53, 55}}},
		kubelets: map[string]kubeletCost{
			kubeGateway: {kubelets: 10, events: 10, memory: kubeletMemory{gateway: 50 * kibibyte}, gatewayMicros: 4},
			direct:      {kubelets: 10, events: 10, memory: kubeletMemory{live: 500 * kibibyte, resident: 900 * kibibyte}, serverMicros: 16},
		},
		reconnected: map[string]reconnection{kubeGateway: {kubelets: 10, complete: 10, last: 30 * time.Second}},
	}
	r.judgeRenewals()
	r.judgeDetection()
	r.judgeFailure()
	r.judgeWatches()
	r.judgeReconnects()
	want := []struct {
		measured  float64
		must, aim bool
	}{
		{50, true, false}, {30, true, false}, {50, true, false}, {30, true, false}, {0.4, true, false},
		{1, true, true}, {50, true, false}, {10, true, false}, {4, true, true}, {30, true, false},
	}
	verdicts := r.Result.Verdicts
	if len(verdicts) != 2*len(want) {
		t.Fatalf("%d verdicts, want %d: %v", len(verdicts), 2*len(want), verdicts)
	}
	for i, w := range want {
		must, aim := verdicts[2*i], verdicts[2*i+1]
		if must.Measured != w.measured || must.Met != w.must || aim.Met != w.aim || !must.Must || aim.Must {
			t.Errorf("verdicts %v and %v, want %v, met: %v and %v", must, aim, w.measured, w.must, w.aim)
		}
	}
}

// Without measurements, no limit is met.
func TestNothingMeasuredMeetsNoLimit(t *testing.T) {
	r := &nodePathRun{bench: &bench{Run: &experiment.Run{Result: &experiment.Result{}, Scale: experiment.Scale{Factor: 1}}}}
	for _, row := range nodePathRows {
		row.judge(r)
	}
	for _, v := range r.Result.Verdicts {
		if v.Met {
			t.Errorf("%v is met", v)
		}
	}
}

// leaseServer answers as an API server does for Leases, and rejects renewals of another version than the last.
type leaseServer struct {
	version, gets atomic.Int64
}

func (s *leaseServer) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, _ := io.ReadAll(request.Body)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a-0"}}
	switch request.Method {
	case http.MethodGet:
		s.gets.Add(1)
	default:
		if err := runtime.DecodeInto(leaseCodec, body, lease); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if request.Method == http.MethodPut && lease.ResourceVersion != version(s.version.Load()) {
			http.Error(w, "conflict", http.StatusConflict)
			return
		}
		s.version.Add(1)
	}
	lease.ResourceVersion = version(s.version.Load())
	answer, _ := runtime.Encode(leaseCodec, lease)
	_, _ = w.Write(answer)
}

func version(n int64) string { return strings.Repeat("1", int(n)) }

// A node renews the version of the last answer, and reads its Lease after a conflict.
func TestNodeRenewsAsAKubelet(t *testing.T) {
	handler := &leaseServer{}
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	f := &front{name: direct, addresses: []string{server.Listener.Addr().String()}}
	n := &node{name: "a-0", conn: nodeConn{front: f, credentials: server.Client().Transport.(*http.Transport).TLSClientConfig}}
	defer n.close()
	if err := n.create(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := n.renew(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := handler.version.Load(); got != 3 || handler.gets.Load() != 0 {
		t.Errorf("%d writes and %d reads, want 3 and none", got, handler.gets.Load())
	}
	handler.version.Add(1) // by another client
	if err := n.renew(t.Context()); err == nil || kindOf(err) != "status 409" {
		t.Errorf("renew() of an old version = %v, want a conflict", err)
	}
	if err := n.renew(context.Background()); err != nil || handler.gets.Load() != 1 {
		t.Errorf("renew() after a conflict = %v with %d reads, want one read", err, handler.gets.Load())
	}
}

// Kubelets that do not all have their watches again miss the limits.
func TestIncompleteReconnectsMissTheLimits(t *testing.T) {
	r := &nodePathRun{
		bench:       &bench{Run: &experiment.Run{Result: &experiment.Result{}, Scale: experiment.Scale{Factor: 1}}},
		reconnected: map[string]reconnection{kubeGateway: {kubelets: 10, complete: 9, p99: 2}},
	}
	r.judgeReconnects()
	for _, v := range r.Result.Verdicts {
		if v.Met || v.Measured != reconnectTimeout.Seconds() {
			t.Errorf("%v is met", v)
		}
	}
}

// The time until a node is NotReady begins with its last renewal. Nodes that did not fail are counted apart.
func TestReadiness(t *testing.T) {
	node := func(name string, status corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}},
		}
	}
	seen := &readiness{notReady: map[string]time.Time{}}
	seen.see(node("a", corev1.ConditionTrue))
	if f := seen.since(map[string]time.Time{"a": time.Now()}); len(f.seconds) != 0 || f.others != 0 {
		t.Errorf("a node that is ready counts: %+v", f)
	}
	for _, name := range []string{"a", "b"} {
		seen.see(node(name, corev1.ConditionUnknown))
	}
	first := seen.notReady["a"]
	seen.see(node("a", corev1.ConditionUnknown))
	f := seen.since(map[string]time.Time{"a": first.Add(-50 * time.Second), "c": first})
	if len(f.seconds) != 1 || f.seconds[0] != 50 || f.others != 1 {
		t.Errorf("%+v, want one node after 50 s and one other", f)
	}
}

// The memory of a kubelet and the CPU of an event are differences to what was before.
func TestKubeletCost(t *testing.T) {
	each := kubeletMemory{gateway: 300, live: 3000, resident: 5000}.each(kubeletMemory{gateway: 100, live: 1000, resident: 1000}, 2)
	if want := (kubeletMemory{gateway: 100, live: 1000, resident: 2000}); each != want {
		t.Errorf("%+v, want %+v", each, want)
	}
	with := delivered{events: 1000, gateway: 7 * time.Millisecond, server: time.Millisecond}
	gateway, server := with.microsAfter(delivered{gateway: 2 * time.Millisecond, server: 3 * time.Millisecond})
	if gateway != 5 || server != 0 {
		t.Errorf("%v and %v µs, want 5 and 0", gateway, server)
	}
}

// The numbers of kubelets follow from the memory of the machine and from the limit on open files.
func TestKubeletsThatFit(t *testing.T) {
	if got := kubeletsWithin(24 << 30); got < 10_000 || got > 15_000 {
		t.Errorf("%d kubelets in 24 GiB", got)
	}
	for limit, want := range map[uint64]int{41_000: 20_000, 20_000: 9500, 1000: 1, 0: 1} {
		if got := kubeletsWithFiles(limit); got != want {
			t.Errorf("%d kubelets with %d open files, want %d", got, limit, want)
		}
	}
}

// A limit on open files that cannot be raised bounds the number of kubelets.
func TestOpenFilesThatCannotBeRaised(t *testing.T) {
	if got, err := raiseOpenFiles(1); err != nil || got != 1 {
		t.Errorf("raiseOpenFiles(1) = %d, %v; want 1", got, err)
	}
	// More than fs.nr_open is refused to root, too.
	if got, err := raiseOpenFiles(1 << 40); err != nil || got < 1 || got == 1<<40 {
		t.Errorf("raiseOpenFiles(1 << 40) = %d, %v; want fewer", got, err)
	}
}
