package gateway

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
)

const (
	// renewInterval is the time between two renewals of a kubelet.
	renewInterval = 10 * time.Second
	// failureTimeout bounds the time until all dead nodes are not ready. kube-controller-manager's grace period is 50 s.
	failureTimeout = 3 * time.Minute
	// failingPrefix begins the names of the nodes. The first half of them dies.
	failingPrefix = "failing"
)

// failures is what happened to nodes of which a half died.
type failures struct {
	// delays are the times from the last renewal of each dead node until a client saw that it is not ready, sorted.
	delays []time.Duration
	// wrong is the number of nodes that were not ready although they had renewed their Leases.
	wrong int
	// served is the number of renewals that the gateway served while all nodes lived, renewals that of all.
	served, renewals int
}

// mean returns the mean delay. The delays are spread over the interval in which kube-controller-manager looks at the
// Leases, so the median depends on its phase.
func (f failures) mean() time.Duration {
	var total time.Duration
	for _, d := range f.delays {
		total += d
	}
	return total / time.Duration(max(len(f.delays), 1))
}

// failure measures how long a node that died stays ready.
func (p *nodePathLab) failure(ctx context.Context) error {
	table := p.table(&p.run.tables.failure, "From the last renewal of a dead node until it is not ready", "front", "dead nodes", "served, %",
		"least, s", "median, s", "mean, s", "most, s", "living nodes that became NotReady")
	f, err := p.measureFailure(ctx)
	if err != nil {
		return err
	}
	served := any("")
	if p.served() {
		served = 100 * float64(f.served) / float64(max(f.renewals, 1))
	}
	count := len(f.delays)
	table.Add(p.front.name, count, served, f.delays[0].Seconds(), f.delays[count/2].Seconds(), f.mean().Seconds(), f.delays[count-1].Seconds(), f.wrong)
	for i, d := range f.delays {
		p.Result.Line(experiment.Series{Plot: "nodes that died: from the last renewal until NotReady", Name: p.front.name, X: "seconds", Unit: "% of the nodes"},
			d.Seconds(), 100*float64(i+1)/float64(count))
	}
	p.run.failures[p.front.name] = f
	return nil
}

// measureFailure creates nodes, lets a half of them die, and waits until these are not ready.
func (p *nodePathLab) measureFailure(ctx context.Context) (f failures, err error) {
	count := 2 * p.run.own.Failing.N
	if err := p.createNodes(ctx, count); err != nil {
		return f, err
	}
	nodes, closeAll, err := p.startNodes(ctx, p.front, failingPrefix, count)
	if err != nil {
		return f, err
	}
	defer closeAll()
	if err := p.awaitServing(ctx, nodes); err != nil {
		return f, err
	}
	watching, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	seen, err := p.observeNodes(watching)
	if err != nil {
		return f, err
	}
	dying, die := context.WithCancel(watching)
	defer die()
	before := p.front.servedRenewals()
	for i, n := range nodes {
		until := watching
		if i < count/2 {
			until = dying
		}
		group.Go(func() { n.renewRegularly(until, time.Duration(i%(count/2))*renewInterval/time.Duration(count/2)) })
	}
	// Each node renews its Lease twice.
	if err := p.pause(ctx, "all nodes live", 2*renewInterval); err != nil {
		return f, err
	}
	f.served, f.renewals = p.front.servedRenewals()-before, 2*count
	if err := p.mustServe(f.served, f.renewals); err != nil {
		return f, err
	}
	die()
	return f, p.awaitFailures(ctx, &f, nodes[:count/2], seen)
}

// awaitFailures waits until the dead nodes are not ready.
func (p *nodePathLab) awaitFailures(ctx context.Context, f *failures, dead []*node, seen *readiness) error {
	if err := p.Await(ctx, p.front.name+": dead nodes NotReady", len(dead), failureTimeout, func() int { return seen.count(dead) }); err != nil {
		return err
	}
	f.wrong = seen.total() - len(dead)
	for _, n := range dead {
		f.delays = append(f.delays, seen.at(n.name).Sub(n.lastRenewal()))
	}
	slices.Sort(f.delays)
	return nil
}

// renewRegularly renews the Lease as often as a kubelet until ctx ends, for the first time after a delay.
func (n *node) renewRegularly(ctx context.Context, delay time.Duration) {
	if sleep(ctx, delay) != nil {
		return
	}
	ticks := time.NewTicker(renewInterval)
	defer ticks.Stop()
	for {
		// A renewal that fails is followed by the next one. If the node becomes NotReady, the result shows it. A renewal
		// that was sent before ctx ended is completed, so that its time is known.
		_ = n.renew(context.WithoutCancel(ctx))
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}

// pause waits for a duration and shows it.
func (p *nodePathLab) pause(ctx context.Context, what string, d time.Duration) error {
	task := p.Display.Task(p.front.name+": "+what, 0)
	if err := sleep(ctx, d); err != nil {
		task.Interrupt()
		return err
	}
	task.Done(d.String())
	return nil
}

// createNodes creates Nodes that are ready. No simulator renews their Leases.
func (p *nodePathLab) createNodes(ctx context.Context, count int) error {
	task := p.Display.Task(p.front.name+": nodes created", count)
	for i := range count {
		now := metav1.Now()
		object := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: nodeName(failingPrefix, i)},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now,
			}}},
		}
		if _, err := p.Client.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{}); err != nil {
			task.Interrupt()
			return fmt.Errorf("creating a node: %w", err)
		}
		task.Set(i + 1)
	}
	task.Done(fmt.Sprint(count))
	return nil
}

// readiness are the times at which nodes were seen to be not ready for the first time.
type readiness struct {
	mu       sync.Mutex
	notReady map[string]time.Time
}

// observeNodes watches the nodes at the API server until ctx ends.
func (p *nodePathLab) observeNodes(ctx context.Context) (*readiness, error) {
	r := &readiness{notReady: map[string]time.Time{}}
	client, err := kubernetes.NewForConfig(p.Rest)
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Core().V1().Nodes().Informer()
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { r.see(object) },
		UpdateFunc: func(_, object any) { r.see(object) },
	})
	if err != nil {
		return nil, err
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, ctx.Err()
	}
	return r, nil
}

func (r *readiness) see(object any) {
	n, ok := object.(*corev1.Node)
	if !ok || slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.notReady[n.Name]; !known {
		r.notReady[n.Name] = time.Now()
	}
}

func (r *readiness) at(name string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.notReady[name]
}

func (r *readiness) total() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.notReady)
}

// count returns how many of the nodes were not ready.
func (r *readiness) count(nodes []*node) (count int) {
	for _, n := range nodes {
		if !r.at(n.name).IsZero() {
			count++
		}
	}
	return count
}

// judgeFailure appends the verdicts of the row failure.
func (r *nodePathRun) judgeFailure() {
	ours, theirs := r.failures[kubeGateway], r.failures[direct]
	r.judge(limitFailure, (ours.mean() - theirs.mean()).Seconds(), min(len(ours.delays), len(theirs.delays)), "")
	r.Result.Note("kube-controller-manager looks at the Leases every 5 s, so the delays of single nodes differ by up to 10 s. The verdict is on the difference of the means. The nodes renew every %s at different times.", renewInterval)
}
