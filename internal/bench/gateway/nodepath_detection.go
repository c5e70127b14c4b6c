package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
)

const (
	// detectionRate is the number of renewals per second while a rule becomes true.
	detectionRate = 300.0
	// A rule is effective if no renewal passed it for detectionQuiet. It must be effective within detectionTimeout.
	detectionQuiet   = 2 * time.Second
	detectionTimeout = 30 * time.Second
	// countPoll is the time between two readings of the gateway's count of served renewals. It is the resolution of
	// the measurement.
	countPoll = 5 * time.Millisecond

	webhookName = "leases.k1m-bench.example.com"
)

// detection is what happened after a webhook was created: the times from the request that created it until the last
// renewal that the gateway served, and until the last renewal that succeeded. The webhook rejects all of them.
type detection struct {
	served, succeeded time.Duration
	// servedAfter is the number of renewals that were served after the request.
	servedAfter int
}

// detection creates a webhook for Leases while nodes renew theirs, and measures which renewals it does not see.
func (p *nodePathLab) detection(ctx context.Context) error {
	table := p.table(&p.run.tables.detection, fmt.Sprintf("A webhook for Leases is created while nodes renew their Leases %.0f times a second", detectionRate), "front", "round",
		"served after the request", "last served after, s", "last renewal without the webhook after, s")
	nodes, closeAll, err := p.startNodes(ctx, p.front, "detecting", p.run.own.Nodes.N)
	if err != nil {
		return err
	}
	defer closeAll()
	if err := p.awaitServing(ctx, nodes); err != nil {
		return err
	}
	w := &renewing{}
	running, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	group.Go(func() { w.run(running, nodes) })
	for round := range p.run.own.Rules.N {
		task := p.Display.Task(fmt.Sprintf("%s: webhook created, round %d", p.front.name, round+1), 0)
		d, err := p.detect(ctx, w)
		if err != nil {
			task.Interrupt()
			return err
		}
		task.Done(fmt.Sprintf("last renewal without the webhook after %d ms", d.succeeded.Milliseconds()))
		served, count := any(""), any("")
		if p.served() {
			served, count = d.served.Seconds(), d.servedAfter
			p.Result.Line(experiment.Series{Plot: "last renewal after a webhook was created", Name: "served by kube-gateway", X: "round", Unit: "s"}, float64(round+1), d.served.Seconds())
		}
		p.Result.Line(experiment.Series{Plot: "last renewal after a webhook was created", Name: "without the webhook, " + p.front.name, X: "round", Unit: "s"},
			float64(round+1), d.succeeded.Seconds())
		table.Add(p.front.name, round+1, count, served, d.succeeded.Seconds())
		p.run.detected[p.front.name] = append(p.run.detected[p.front.name], d)
	}
	return nil
}

// renewing are renewals whose results are counted.
type renewing struct {
	attempts, successes atomic.Int64
	last                atomic.Int64 // Unix time of the last success in nanoseconds
}

// run renews the Leases of nodes until ctx ends.
func (w *renewing) run(ctx context.Context, nodes []*node) {
	load := renewAll(nodes, detectionRate)
	do := load.Do
	load.Do = func(ctx context.Context, number, worker int) error {
		err := do(ctx, number, worker)
		w.attempts.Add(1)
		if err == nil {
			w.successes.Add(1)
			w.last.Store(time.Now().UnixNano())
		}
		return err
	}
	load.Run(ctx)
}

// detect creates the webhook, waits until it sees all renewals, and removes it.
func (p *nodePathLab) detect(ctx context.Context, w *renewing) (d detection, err error) {
	if err := p.awaitFlow(ctx, w); err != nil {
		return d, err
	}
	hooks := p.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	observing, stop := context.WithCancel(ctx)
	counted := make(chan servedSince, 1)
	begun := time.Now()
	go func() { counted <- p.countServed(observing) }()
	_, err = hooks.Create(ctx, leaseWebhook(), metav1.CreateOptions{})
	if err == nil {
		err = p.awaitRejected(ctx, w)
	}
	attempts := w.attempts.Load()
	stop()
	c := <-counted
	removal := hooks.Delete(context.WithoutCancel(ctx), webhookName, metav1.DeleteOptions{})
	if apierrors.IsNotFound(removal) {
		removal = nil
	}
	if err := errors.Join(err, removal); err != nil {
		return d, err
	}
	if attempts == 0 {
		return d, errors.New("no renewal was sent")
	}
	d.servedAfter = c.count
	if c.count > 0 {
		d.served = max(c.last.Sub(begun), 0)
	}
	d.succeeded = max(time.Unix(0, w.last.Load()).Sub(begun), 0)
	return d, nil
}

// servedSince is how many renewals the gateway served, and when it was seen to serve the last one.
type servedSince struct {
	count int
	last  time.Time
}

// countServed reads the gateway's count of served renewals until ctx ends. The times are those after the reading, so
// they are never too early.
func (p *nodePathLab) countServed(ctx context.Context) (c servedSince) {
	if !p.served() {
		return c
	}
	before := p.front.servedRenewals()
	for experiment.Sleep(ctx, countPoll) == nil {
		if now := p.front.servedRenewals(); now > before {
			c.count, before = c.count+now-before, now
			c.last = time.Now()
		}
	}
	return c
}

// awaitFlow waits until renewals succeed, and until the gateway serves them.
func (p *nodePathLab) awaitFlow(ctx context.Context, w *renewing) error {
	const wanted = detectionRate
	before := w.successes.Load()
	if err := p.await(ctx, "renewals", wanted, func() int { return min(int(w.successes.Load()-before), wanted) }); err != nil {
		return err
	}
	if !p.served() {
		return nil
	}
	served := p.front.servedRenewals()
	err := p.await(ctx, "renewals served", wanted, func() int { return min(p.front.servedRenewals()-served, wanted) })
	if err != nil {
		return fmt.Errorf("kube-gateway does not serve renewals (state %d, refused by %s): %w",
			p.front.sum("kube_gateway_node_path_lease_state", ""), p.refusals(), err)
	}
	return nil
}

// awaitRejected waits until renewals were sent and none has succeeded for some time.
func (p *nodePathLab) awaitRejected(ctx context.Context, w *renewing) error {
	deadline := time.Now().Add(detectionTimeout)
	quietSince, successes, attempts := time.Now(), w.successes.Load(), w.attempts.Load()
	for {
		if err := experiment.Sleep(ctx, pollInterval); err != nil {
			return err
		}
		if now := w.successes.Load(); now != successes {
			quietSince, successes, attempts = time.Now(), now, w.attempts.Load()
		}
		if time.Since(quietSince) >= detectionQuiet && w.attempts.Load() > attempts {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("renewals still succeed %s after the webhook %s was created, which rejects them", detectionTimeout, webhookName)
		}
	}
}

// leaseWebhook returns a webhook that fails, because nothing listens at its address, so that the API server rejects
// every update of a node's Lease that it sees.
func leaseWebhook() *admissionv1.ValidatingWebhookConfiguration {
	return &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: webhookName},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: webhookName, AdmissionReviewVersions: []string{"v1"},
			ClientConfig:      admissionv1.WebhookClientConfig{URL: new("https://127.0.0.1:1/")},
			FailurePolicy:     new(admissionv1.Fail),
			SideEffects:       new(admissionv1.SideEffectClassNone),
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: corev1.NamespaceNodeLease}},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{"coordination.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"leases"}},
			}},
		}},
	}
}

// judgeDetection appends the verdicts of the row detection: the slowest round counts.
func (r *nodePathRun) judgeDetection() {
	var slowest time.Duration
	for _, d := range r.detected[kubeGateway] {
		slowest = max(slowest, d.served)
	}
	r.Judge(limitDetection, slowest.Seconds(), len(r.detected[kubeGateway]), "")
	r.Result.Note("Times of the row detection begin with the request that creates the webhook. The gateway's count of served renewals is read every %s, and the time after the reading counts.", countPoll)
}
