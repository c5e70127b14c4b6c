// Package storetrace records the etcd requests of a cluster (`k1m bench proxy-trace`): it runs a
// cluster through the common operations of Kubernetes with etcd-proxy between API servers and
// store, and reports which requests the API servers sent.
package storetrace

import (
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

const (
	// During the run the Deployment grows by half and is replaced.
	maxReplicas = 100_000
	maxObjects  = 100_000
	// The run takes half a minute, and API servers compact every five minutes by default.
	compactionInterval = "5s"
)

// Options are the options of a run.
type Options struct {
	Nodes    int
	Replicas int // of the Deployment
	Objects  int // number of ConfigMaps, of Secrets and of custom resources
	Store    string
	Timeout  time.Duration // of each step
	Out      string        // directory of report.html and summary.json
	// TraceFile is the file of the trace; if empty, the trace is removed with the cluster.
	TraceFile string
}

// DefaultOptions returns the options of a run of about a minute.
func DefaultOptions() Options {
	return Options{
		Nodes: 100, Replicas: 100, Objects: 50, Store: clusterdir.StoreMemEtcd,
		Timeout: 2 * time.Minute, Out: filepath.Join("results", time.Now().UTC().Format("2006-01-02T150405Z")+"_proxy-trace"),
	}
}

// AddFlags binds the options to flags; their current values are the defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.IntVar(&o.Nodes, "nodes", o.Nodes, "simulated nodes")
	fs.IntVar(&o.Replicas, "replicas", o.Replicas, "pods of the Deployment that is rolled out")
	fs.IntVar(&o.Objects, "objects", o.Objects, "number of ConfigMaps, of Secrets and of custom resources")
	fs.StringVar(&o.Store, "store", o.Store, "state store: mem_etcd|etcd")
	fs.DurationVar(&o.Timeout, "timeout", o.Timeout, "time limit of a step")
	fs.StringVar(&o.Out, "out", o.Out, "directory for report.html and summary.json")
	fs.StringVar(&o.TraceFile, "trace-file", o.TraceFile, "file of the trace (default: the trace is removed with the cluster)")
}

// Validate returns the first invalid option as a usage error.
func (o *Options) Validate() error {
	switch {
	case o.Nodes < 1:
		return usage.Errorf("--nodes %d: pods need at least one node", o.Nodes)
	case o.Replicas < 2 || o.Replicas > maxReplicas:
		return usage.Errorf("--replicas %d: choose 2 to %d", o.Replicas, maxReplicas)
	case o.Objects < 2 || o.Objects > maxObjects:
		return usage.Errorf("--objects %d: choose 2 to %d", o.Objects, maxObjects)
	case o.Store != clusterdir.StoreMemEtcd && o.Store != clusterdir.StoreEtcd:
		return usage.Errorf("--store %q: no such store; choose mem_etcd or etcd", o.Store)
	case o.Timeout <= 0:
		return usage.Errorf("--timeout %s: must be more than 0", o.Timeout)
	case o.Out == "":
		return usage.Errorf("--out: specify a directory for the report")
	}
	return nil
}

// clusterFlags returns the flags of `k1m up`.
func (o *Options) clusterFlags(traceFile string) (*pflag.FlagSet, error) {
	settings := clusterdir.DefaultSettings()
	wanted := settings
	fs := pflag.NewFlagSet("up", pflag.ContinueOnError)
	settings.AddFlags(fs)
	wanted.Nodes, wanted.Store, wanted.Trace, wanted.TraceFile = o.Nodes, o.Store, true, traceFile
	from := pflag.NewFlagSet("wanted", pflag.ContinueOnError)
	wanted.AddFlags(from)
	for _, name := range []string{"nodes", "store", "trace", "trace-file"} {
		if err := fs.Set(name, from.Lookup(name).Value.String()); err != nil {
			return nil, err
		}
	}
	return fs, fs.Set("apiserver-arg", "etcd-compaction-interval="+compactionInterval)
}
