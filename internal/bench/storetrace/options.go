// Package storetrace records the requests that a cluster sends to its store (`k1m bench proxy-trace`). It
// creates a cluster with etcd-proxy between the API servers and the store, executes common operations of
// Kubernetes, and reports which requests the API servers sent.
package storetrace

import (
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

const (
	// Limits of --replicas and --objects. During the run the Deployment is scaled up by half, and then a
	// new image replaces all its pods.
	maxReplicas = 100_000
	maxObjects  = 100_000
	// API servers compact the store every five minutes by default. The run is shorter, so it sets a
	// shorter interval: otherwise the trace would contain no compaction.
	compactionInterval = "5s"
)

// Options are the options of a run.
type Options struct {
	Nodes    int
	Replicas int // of the Deployment
	Objects  int // number of objects of each kind: ConfigMaps, Secrets and custom resources
	Store    string
	Timeout  time.Duration // for the start of the cluster, and for each group of operations
	Out      string        // directory for report.html and summary.json
	// TraceFile is the file for the trace. If it is empty, the trace is removed at the end.
	TraceFile string
}

// DefaultOptions returns the default options of a run.
func DefaultOptions() Options {
	return Options{
		Nodes: 100, Replicas: 100, Objects: 50, Store: clusterdir.StoreMemEtcd,
		Timeout: 2 * time.Minute, Out: filepath.Join("results", time.Now().UTC().Format("2006-01-02T150405Z")+"_proxy-trace"),
	}
}

// AddFlags binds the options to flags; their current values are the defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.IntVar(&o.Nodes, "nodes", o.Nodes, "number of simulated nodes")
	fs.IntVar(&o.Replicas, "replicas", o.Replicas, "number of pods of the Deployment, before it is scaled up by half")
	fs.IntVar(&o.Objects, "objects", o.Objects,
		"number of objects of each kind: ConfigMaps, Secrets and custom resources")
	fs.StringVar(&o.Store, "store", o.Store, "store of the cluster: mem_etcd|etcd")
	fs.DurationVar(&o.Timeout, "timeout", o.Timeout,
		"time limit for the start of the cluster, and for each group of operations")
	fs.StringVar(&o.Out, "out", o.Out, "directory for report.html and summary.json")
	fs.StringVar(&o.TraceFile, "trace-file", o.TraceFile,
		"file for the trace (default: the trace is removed at the end)")
}

// Validate returns the first invalid option as a usage error.
func (o *Options) Validate() error {
	switch {
	case o.Nodes < 1:
		return usage.Errorf("--nodes %d: choose 1 or more", o.Nodes)
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

// clusterFlags returns the flags of `k1m up`, set to the values that this run needs.
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
