package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	kubegateway "github.com/k8s-1m/k8s-1m/deploy/kube-gateway"
	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
)

const (
	// comparisons is the default of nodePath.leases.comparisons: how many renewals must be compared without a
	// difference before the gateway serves.
	comparisons = 1000
	// warmUpRate is the number of renewals per second until the gateway serves.
	warmUpRate = 300.0
	// The states in kube_gateway_node_path_lease_state.
	stateOff, stateOn = 0, 2
	// permitTimeout bounds the time in which the gateway examines the cluster, and in which its caches serve.
	permitTimeout = 30 * time.Second

	renewalsMetric = "kube_gateway_node_path_lease_renewals_total"
)

// nodePathLab is a cluster whose clients connect to a front: the API server, or a gateway with a node path.
type nodePathLab struct {
	*lab
	run   *nodePathRun
	front *front
}

// gatewayFields are the fields of the gateway's configuration that differ from k1m's.
func gatewayFields() map[string]any {
	return map[string]any{"nodePath": map[string]any{
		"leases": map[string]any{"mode": "on", "comparisons": comparisons}, "watches": map[string]any{"mode": "on"},
	}}
}

// nodePathSettings returns the settings of the cluster with a front. file is where the fields of the gateway's
// configuration are written.
func nodePathSettings(name, file string) (clusterdir.Settings, error) {
	settings := clusterdir.DefaultSettings()
	settings.Nodes, settings.Gateway = 0, new(name == kubeGateway)
	if name == direct {
		return settings, nil
	}
	settings.GatewayConfig = file
	return settings, writeFields(file, gatewayFields())
}

// writeFields writes fields of the gateway's configuration to a file.
func writeFields(file string, fields map[string]any) error {
	content, err := yaml.Marshal(fields)
	if err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o600)
}

// withNodePathLab creates the cluster with a front, calls use, and removes the cluster.
func (r *nodePathRun) withNodePathLab(ctx context.Context, name string, use func(context.Context, *nodePathLab) error) (err error) {
	directory, err := os.MkdirTemp("", "k1m-bench-node-path-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	settings, err := nodePathSettings(name, filepath.Join(directory, "gateway.yaml"))
	if err != nil {
		return err
	}
	return r.withLab(ctx, ", "+name, settings, func(ctx context.Context, l *lab) error {
		p := &nodePathLab{lab: l, run: r, front: &front{name: name, addresses: l.target.servers}}
		if name == kubeGateway {
			ports := l.Config.Ports
			gateway := clusterdir.GatewayName(0)
			p.front.addresses = []string{ports.Address(gateway)}
			p.front.page = "http://" + ports.Address(clusterdir.GatewayMetricsPort(gateway))
			var err error
			if p.front.id, err = p.process(gateway); err != nil {
				return err
			}
			if err := kube.Apply(ctx, l.Rest, kubegateway.NodePath); err != nil {
				return fmt.Errorf("applying the permissions of the node path: %w", err)
			}
			if err := p.awaitPermitted(ctx); err != nil {
				return err
			}
		}
		return use(ctx, p)
	})
}

// served reports whether the front is a gateway, which serves renewals.
func (p *nodePathLab) served() bool { return p.front.name == kubeGateway }

// sum returns the sum of the samples of a metric of the gateway whose labels contain a text. A page that cannot be read
// is as one without the metric.
func (f *front) sum(name, labels string) (total int) {
	byLabels, _ := f.metric(name)
	sum, _ := sumOf(byLabels, labels)
	return int(sum)
}

// servedRenewals returns the number of renewals that the gateway has served; 0 without a gateway.
func (f *front) servedRenewals() int {
	return f.sum(renewalsMetric, `result="served"`)
}

// awaitPermitted waits until the gateway has found nothing that must see renewals.
func (p *nodePathLab) awaitPermitted(ctx context.Context) error {
	for deadline := time.Now().Add(permitTimeout); p.front.sum("kube_gateway_node_path_permitted", "") != 1; {
		if time.Now().After(deadline) {
			return fmt.Errorf("kube-gateway refuses the node path for more than %s because of the rules %s; its log has the reasons (docs/kube-gateway.md)",
				permitTimeout, p.refusals())
		}
		if err := experiment.Sleep(ctx, pollInterval); err != nil {
			return err
		}
	}
	return nil
}

// refusals returns the rules that refuse the node path.
func (p *nodePathLab) refusals() string {
	rules, _ := p.front.metric("kube_gateway_node_path_refused")
	maps.DeleteFunc(rules, func(_ string, value float64) bool { return value == 0 })
	return strings.Join(slices.Sorted(maps.Keys(rules)), ", ")
}

// forwards returns the numbers of forwarded requests in a metric by reason, as text.
func (p *nodePathLab) forwards(metric string) string {
	var all []string
	counts, _ := p.front.metric(metric)
	for _, labels := range slices.Sorted(maps.Keys(counts)) {
		if strings.Contains(labels, `result="forwarded"`) && counts[labels] > 0 {
			all = append(all, fmt.Sprintf("%.0f × %s", counts[labels], labels))
		}
	}
	return strings.Join(all, ", ")
}

// awaitServing renews the Leases of nodes until the gateway serves the renewals of all of them.
func (p *nodePathLab) awaitServing(ctx context.Context, nodes []*node) error {
	if !p.served() {
		return nil
	}
	renewing, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		renewAll(nodes, warmUpRate).Run(renewing)
	}()
	defer func() {
		stop()
		<-ended
	}()
	compared := func() int {
		return p.front.sum("kube_gateway_node_path_lease_comparisons_total", `result="equal"`)
	}
	err := p.await(ctx, "renewals compared until kube-gateway serves", comparisons, func() int {
		if p.front.sum("kube_gateway_node_path_lease_state", "") == stateOn {
			return comparisons
		}
		return min(compared(), comparisons-1)
	})
	if err != nil {
		return fmt.Errorf("kube-gateway does not serve renewals (%d comparisons with a difference; forwarded: %s): %w",
			p.front.sum("kube_gateway_node_path_lease_comparisons_total", `result="different"`), p.forwards(renewalsMetric), err)
	}
	// The gateway learns a Lease from the answer to a renewal.
	before := p.front.servedRenewals()
	return p.await(ctx, "renewals served", len(nodes), func() int { return min(p.front.servedRenewals()-before, len(nodes)) })
}

// mustServe returns an error if the gateway served none of the renewals.
func (p *nodePathLab) mustServe(served, renewals int) error {
	if !p.served() || served > 0 {
		return nil
	}
	return fmt.Errorf("kube-gateway served none of %d renewals; state %d, refused by %s, forwarded: %s", renewals,
		p.front.sum("kube_gateway_node_path_lease_state", ""), p.refusals(), p.forwards(renewalsMetric))
}

// table returns a table of a row, which the first front creates.
func (p *nodePathLab) table(of **experiment.Table, title string, columns ...string) *experiment.Table {
	if *of == nil {
		*of = p.Result.Table(title, columns...)
	}
	return *of
}
