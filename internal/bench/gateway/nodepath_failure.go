package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
)

const (
	// renewalPeriod is the time between two renewals of a kubelet.
	renewalPeriod = 10 * time.Second
	// failureSpread is the time in which the nodes fail, one after the other. It is a multiple of the period in which
	// kube-controller-manager looks at the nodes, so that they fail in all phases of it.
	failureSpread = 20 * time.Second
)

// failures is what happened after nodes failed.
type failures struct {
	// seconds are the times from the last renewals of nodes until they were seen to be NotReady.
	seconds []float64
	// others is the number of nodes that became NotReady although they renewed their Leases.
	others int
}

// readiness records when nodes were seen to be NotReady for the first time.
type readiness struct {
	mu       sync.Mutex
	notReady map[string]time.Time
}

// see records a version of a node.
func (r *readiness) see(object any) {
	node, ok := object.(*corev1.Node)
	if !ok || bulk.NodeReady(node) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.notReady[node.Name]; !known {
		r.notReady[node.Name] = time.Now()
	}
}

// since returns how long nodes took until they were NotReady after a time, and how many other nodes are.
func (r *readiness) since(last map[string]time.Time) (f failures) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, seen := range r.notReady {
		if renewed, failed := last[name]; failed {
			f.seconds = append(f.seconds, seen.Sub(renewed).Seconds())
		} else {
			f.others++
		}
	}
	slices.Sort(f.seconds)
	return f
}

// failure lets nodes fail, and measures how long kube-controller-manager takes until they are NotReady.
func (p *nodePathLab) failure(ctx context.Context) error {
	table := p.table(&p.run.tables.failure, fmt.Sprintf("Nodes that stop to renew their Leases, of %d nodes that renew them every %.0f s", p.run.own.Nodes.N, renewalPeriod.Seconds()),
		"front", "nodes that failed", "NotReady after the last renewal, least, s", "median, s", "most, s", "other nodes NotReady")
	nodes, closeAll, err := p.startNodes(ctx, p.front, "failing", p.run.own.Nodes.N)
	if err != nil {
		return err
	}
	defer closeAll()
	if err := p.awaitServing(ctx, nodes); err != nil {
		return err
	}
	f, err := p.measureFailures(ctx, nodes)
	if err := errors.Join(err, p.deleteNodes(ctx, nodes)); err != nil {
		return err
	}
	p.run.failures[p.front.name] = f
	table.Add(p.front.name, len(f.seconds), f.seconds[0], median(f.seconds), f.seconds[len(f.seconds)-1], f.others)
	return nil
}

// measureFailures registers the nodes, renews their Leases, and lets some of them fail.
func (p *nodePathLab) measureFailures(ctx context.Context, nodes []*node) (f failures, err error) {
	running, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	load := renewAll(nodes, float64(len(nodes))/renewalPeriod.Seconds())
	// Without renewals, the first nodes would be NotReady before the last ones are registered.
	group.Go(func() { load.Run(running) })
	seen, err := p.watchReadiness(running, &group)
	if err != nil {
		return f, err
	}
	if err := p.registerNodes(ctx, nodes); err != nil {
		return f, err
	}
	if err := errors.Join(p.AwaitQuiet(ctx), experiment.Sleep(ctx, renewalPeriod)); err != nil {
		return f, err
	}
	served, renewals := p.front.servedRenewals(), load.Latencies.Count()
	last, err := p.failInTurn(ctx, nodes)
	if err != nil {
		return f, err
	}
	if err := p.mustServe(p.front.servedRenewals()-served, int(load.Latencies.Count()-renewals)); err != nil {
		return f, err
	}
	err = p.await(ctx, p.front.name+": failed nodes NotReady", len(last), func() int { return len(seen.since(last).seconds) })
	p.Result.Errors.Merge(load.Tally)
	return seen.since(last), err
}

// failInTurn lets nodes fail one after the other, and returns the times of their last renewals.
func (p *nodePathLab) failInTurn(ctx context.Context, nodes []*node) (map[string]time.Time, error) {
	last := map[string]time.Time{}
	count := min(p.run.own.Failures.N, len(nodes))
	task := p.Display.Task(p.front.name+": nodes fail", count)
	for i := range count {
		if err := experiment.Sleep(ctx, failureSpread/time.Duration(count)); err != nil {
			task.Interrupt()
			return nil, err
		}
		// Nodes renew in turn, so these renew in all phases of the period.
		n := nodes[i*len(nodes)/count]
		last[n.name] = n.fail()
		task.Set(i + 1)
	}
	task.Done(fmt.Sprint(count))
	return last, nil
}

// watchReadiness watches the nodes at the API server until ctx ends.
func (p *nodePathLab) watchReadiness(ctx context.Context, group *sync.WaitGroup) (*readiness, error) {
	client, err := kubernetes.NewForConfig(p.Rest)
	if err != nil {
		return nil, err
	}
	seen := &readiness{notReady: map[string]time.Time{}}
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", metav1.NamespaceAll, fields.Everything()),
		ObjectType:    &corev1.Node{},
		Handler:       cache.ResourceEventHandlerFuncs{AddFunc: seen.see, UpdateFunc: func(_, node any) { seen.see(node) }},
	})
	group.Go(func() { controller.RunWithContext(ctx) })
	return seen, p.await(ctx, "nodes are watched", 1, func() int {
		if controller.HasSynced() {
			return 1
		}
		return 0
	})
}

// registerNodes creates Nodes that are ready.
func (p *nodePathLab) registerNodes(ctx context.Context, nodes []*node) error {
	shape, err := bulk.NewNodes(bulk.DefaultNodeShape())
	if err != nil {
		return err
	}
	return p.forNodes(ctx, "Nodes registered", nodes, func(ctx context.Context, number int, client kubernetes.Interface) error {
		_, err := client.CoreV1().Nodes().Create(ctx, registered(shape.Make(nodes[number].name, number)), metav1.CreateOptions{})
		return err
	})
}

// deleteNodes deletes the Nodes, so that kube-controller-manager has no work with them during the next rows.
func (p *nodePathLab) deleteNodes(ctx context.Context, nodes []*node) error {
	if ctx.Err() != nil {
		return nil // The cluster is removed.
	}
	return p.forNodes(ctx, "Nodes deleted", nodes, func(ctx context.Context, number int, client kubernetes.Interface) error {
		err := client.CoreV1().Nodes().Delete(ctx, nodes[number].name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// forNodes does something once for each node.
func (p *nodePathLab) forNodes(ctx context.Context, what string, nodes []*node, do func(ctx context.Context, number int, client kubernetes.Interface) error) error {
	task := p.Display.Task(p.front.name+": "+what, len(nodes))
	load := experiment.Load{
		Workers: createConcurrency, Count: len(nodes), Kind: bulk.ErrorKind,
		Latencies: experiment.NewLatencies(), Tally: experiment.NewTally(0), Progress: task.Set,
		Do: func(ctx context.Context, number, worker int) error {
			return do(ctx, number, p.Clients.Connection(worker%clusterConnections))
		},
	}
	load.Run(ctx)
	if err := errors.Join(ctx.Err(), load.Tally.Err()); err != nil {
		task.Interrupt()
		return fmt.Errorf("%s: %w", what, err)
	}
	task.Done(fmt.Sprint(len(nodes)))
	return nil
}

// judgeFailure appends the verdicts of the row failure.
func (r *nodePathRun) judgeFailure() {
	ours, theirs := r.failures[kubeGateway].seconds, r.failures[direct].seconds
	r.Judge(limitFailure, median(ours)-median(theirs), min(len(ours), len(theirs)), "")
	r.Result.Note("NotReady is the moment at which a client of the API server sees the condition Ready of a Node as Unknown. kube-controller-manager has its defaults: it looks at the nodes every 5 s (--node-monitor-period), and waits for a renewal for 50 s (--node-monitor-grace-period).")
}
