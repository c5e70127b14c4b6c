package controlplane

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

var lists = experiment.Experiment{
	Name:  "lists",
	Short: "Update pods while other clients list all pods at increasing rates",
	Long: `Update pods at a fixed rate while other clients list all pods 0, 60, 600, … up to --lists times
per minute. Responses are read completely but not decoded. Lists request the newest state, as
kubectl does. With --any-version they request any state, as informers do, and the API server may
answer from its cache. Latencies count from the time for which a call was scheduled. With --gateway
the lists go through kube-gateway, which limits them by their predicted bytes.`,
	Example: `  k1m bench lists
  k1m bench lists --pods 20000 --lists 600 --any-version
  k1m bench lists --pods 50000 --lists 600 --apiservers 3 --gateway`,
	New: func() experiment.Options {
		o := &listsOptions{underUpdates: newUnderUpdates(), Lists: experiment.ByScale(600, 60), servers: servers{APIServers: 1}}
		o.changeSettings = o.apply
		return o
	},
}

type listsOptions struct {
	underUpdates
	servers
	Lists      experiment.Count
	AnyVersion bool
}

// Validate returns the first invalid option as a usage error.
func (o *listsOptions) Validate() error {
	if err := o.servers.Validate(); err != nil {
		return err
	}
	return o.underUpdates.Validate()
}

// AddFlags binds the options to flags.
func (o *listsOptions) AddFlags(fs *pflag.FlagSet) {
	o.underUpdates.AddFlags(fs)
	o.servers.AddFlags(fs)
	fs.Var(&o.Lists, "lists", o.Lists.Usage("largest number of lists per minute"))
	fs.BoolVar(&o.AnyVersion, "any-version", o.AnyVersion,
		"list with resourceVersion=0, which the API server may answer from its cache")
}

// Run implements experiment.Options.
func (o *listsOptions) Run(ctx context.Context, run *experiment.Run) error {
	table, gateways := listsTable(run.Result), o.gatewayTable(run.Result)
	return o.each(ctx, run, func(ctx context.Context, t *storeRun) error {
		if err := t.prepareFilled(ctx, o.Pods.N); err != nil {
			return err
		}
		return o.measure(ctx, t, 60, table, gateways)
	})
}

func listsTable(r *experiment.Result) *experiment.Table {
	return r.Table("Updates with concurrent lists", "store", "lists, /min", "done, /min", "updates, /s", "errors, %",
		"memory: kube-apiserver, MiB", "store, MiB", "cores: kube-apiserver", "store",
		"list p75, ms", "p90, ms", "p95, ms", "update p95, ms")
}

// measure measures all rates of lists: none, first, and ten times as many each time.
func (o *listsOptions) measure(ctx context.Context, t *storeRun, first int, table, gateways *experiment.Table) error {
	clients, err := t.throughGateway()
	if err != nil {
		return err
	}
	for _, rate := range append([]int{0}, steps(first, o.Lists.N)...) {
		if err := o.step(ctx, t, clients, rate, table, gateways); err != nil {
			return err
		}
	}
	return nil
}

// step measures one rate of lists.
func (o *listsOptions) step(ctx context.Context, t *storeRun, clients *bulk.Clients, perMinute int, table, gateways *experiment.Table) error {
	listing := t.podLoad(0, 64, float64(perMinute)/60)
	listing.Workers = 64
	listing.Do = func(ctx context.Context, _, worker int) error { return o.list(ctx, clients.Connection(worker)) }
	concurrently := func(ctx context.Context) {
		if perMinute > 0 {
			listing.Run(ctx)
		}
	}
	load, m, err := t.measureUpdates(ctx, fmt.Sprintf("%d lists a minute", perMinute), o.Duration.D, o.Pods.N, o.Rate, concurrently)
	t.Result.Errors.Merge(listing.Tally)
	if err != nil {
		return err
	}
	tally := experiment.NewTally(1)
	tally.Merge(listing.Tally)
	tally.Merge(load.Tally)
	l := listing.Latencies
	table.Add(t.store, perMinute, 60*float64(l.Count())/m.Seconds, float64(load.Latencies.Count())/m.Seconds, 100*tally.Rate(),
		float64(m.Peak[apiServer])/mebibyte, float64(m.Peak[component.Store])/mebibyte, m.Cores(apiServer), m.Cores(component.Store),
		l.Millis(75), l.Millis(90), l.Millis(95), load.Latencies.Millis(95))
	t.gatewayCosts(gateways, fmt.Sprintf("%d lists a minute", perMinute), m)
	if perMinute > 0 {
		x := "lists per minute"
		t.Result.Line(experiment.Series{Plot: "list latency by lists per minute", Name: "p95" + on(t.store), X: x, Unit: "ms", LogX: true, LogY: true}, float64(perMinute), l.Millis(95))
		t.Result.Line(experiment.Series{Plot: "update latency by lists per minute", Name: "p95" + on(t.store), X: x, Unit: "ms", LogX: true, LogY: true}, float64(perMinute), load.Latencies.Millis(95))
		t.figure(fmt.Sprintf("p95 of lists, %d lists per minute", perMinute), "ms", l.Millis(95), false)
		t.figure(fmt.Sprintf("p95 of updates, %d lists per minute", perMinute), "ms", load.Latencies.Millis(95), false)
	}
	return nil
}

// list lists the pods of all namespaces, and discards the response.
func (o *listsOptions) list(ctx context.Context, client kubernetes.Interface) error {
	options := metav1.ListOptions{}
	if o.AnyVersion {
		options.ResourceVersion = "0"
	}
	body, err := client.CoreV1().RESTClient().Get().Resource("pods").
		VersionedParams(&options, scheme.ParameterCodec).Stream(ctx)
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(io.Discard, body)
	return err
}
