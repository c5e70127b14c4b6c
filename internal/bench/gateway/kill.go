package gateway

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
)

// killServers is the number of API servers behind the gateways that are killed.
const killServers = 2

// kill kills a gateway, first the only one and then one of two, and observes the nodes that connect through it.
func (b *bench) kill(ctx context.Context) error {
	table := b.Result.Table("A gateway killed with SIGKILL", "gateways", "nodes", "ready again, s", "observed, s", "nodes that became NotReady", "oldest Lease, s")
	for _, gateways := range []int{1, 2} {
		settings := clusterdir.DefaultSettings()
		settings.Nodes, settings.APIServers, settings.Gateway, settings.Gateways = b.options.KillNodes.N, killServers, new(true), gateways
		suffix := fmt.Sprintf(", a gateway of %d killed", gateways)
		err := b.withLab(ctx, suffix, settings, func(ctx context.Context, l *lab) error {
			m, err := l.measureKill(ctx, suffix)
			if err != nil {
				return err
			}
			table.Add(gateways, b.options.KillNodes.N, m.ready.Seconds(), b.options.KillTime.D.Seconds(), len(m.notReady), m.oldestLease.Seconds())
			b.judgeKill(gateways, len(m.notReady))
			return nil
		})
		if err != nil {
			return fmt.Errorf("row %s: %w", killRow, err)
		}
	}
	return nil
}

// judgeKill appends the verdict. With one gateway no node may become NotReady; the same with two is the aim.
func (b *bench) judgeKill(gateways, notReady int) {
	verdict := experiment.Verdict{
		Name: limitNotReady.Name + ", must", Measured: float64(notReady), Unit: limitNotReady.Unit,
		Operations: int64(b.options.KillNodes.N), Must: b.Scale.Factor >= 1,
	}
	if gateways > 1 {
		verdict.Name, verdict.Must = limitNotReady.Name+", two gateways, aim", false
	}
	b.Result.Verdicts = append(b.Result.Verdicts, verdict.Judged())
}

// killed is what happened after a gateway was killed.
type killed struct {
	ready       time.Duration
	notReady    map[string]bool
	oldestLease time.Duration
}

// measureKill kills the first gateway, and observes the nodes and their Leases.
func (l *lab) measureKill(ctx context.Context, suffix string) (m killed, err error) {
	m.notReady = map[string]bool{}
	if err := l.AwaitQuiet(ctx); err != nil {
		return m, err
	}
	state, err := supervisor.ReadState(l.Cluster.Dir)
	if err != nil {
		return m, err
	}
	name := clusterdir.GatewayName(0)
	i := slices.IndexFunc(state.Components, func(c supervisor.ComponentState) bool { return c.Name == name })
	if i < 0 {
		return m, fmt.Errorf("the cluster has no component %s", name)
	}
	before := state.Components[i].Process
	begun := time.Now()
	l.Result.Markers = append(l.Result.Markers, experiment.Marker{ChartSuffix: suffix, Name: "killed", Seconds: begun.Sub(l.Result.Time).Seconds()})
	if err := before.Signal(syscall.SIGKILL); err != nil {
		return m, err
	}
	task := l.Display.Task("nodes observed", 0)
	for time.Since(begun) < l.options.KillTime.D {
		if m.ready == 0 {
			now, err := supervisor.ReadState(l.Cluster.Dir)
			if err == nil && now.Components[i].Phase == supervisor.Ready && now.Components[i].Process != before {
				m.ready = time.Since(begun)
			}
		}
		if err := l.observe(ctx, &m); err != nil {
			task.Interrupt()
			return m, err
		}
		if err := experiment.Sleep(ctx, time.Second); err != nil {
			task.Interrupt()
			return m, err
		}
	}
	task.Done(fmt.Sprintf("%d became NotReady", len(m.notReady)))
	if m.ready == 0 {
		return m, fmt.Errorf("%s was not started again within %s", name, l.options.KillTime.D)
	}
	return m, nil
}

// observe records the nodes that are not ready, and the age of the oldest Lease. It reads from an API server.
func (l *lab) observe(ctx context.Context, m *killed) error {
	nodes, err := l.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	for _, node := range nodes.Items {
		if !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			m.notReady[node.Name] = true
		}
	}
	leases, err := l.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("listing Leases: %w", err)
	}
	for _, lease := range leases.Items {
		if lease.Spec.RenewTime != nil {
			m.oldestLease = max(m.oldestLease, time.Since(lease.Spec.RenewTime.Time))
		}
	}
	return nil
}
