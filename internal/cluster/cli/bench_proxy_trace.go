package cli

import (
	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/bench/storetrace"
)

func newBenchProxyTrace() benchmark {
	options := storetrace.DefaultOptions()
	return benchmark{
		use:   "proxy-trace",
		short: "Trace and classify the requests that a cluster sends to its store, from start to end",
		long: `Trace and classify the requests that a cluster sends to its store. The command starts a control
plane with etcd-proxy between its API servers and the store. It then creates nodes, rolls out and
scales a Deployment, replaces the pods of the Deployment, and creates and deletes Jobs, custom
resources and namespaces.

The report lists the shapes of the requests, and the requests that have none of the five shapes that
Kubernetes is documented to use: create a key, update or delete a key that is unchanged, get a key,
and list a prefix.

The cluster is named "` + experiment.DefaultCluster + `" unless --name is set, and is removed at the end.`,
		example: `  k1m bench proxy-trace
  k1m bench proxy-trace --nodes 1000 --replicas 1000 --store etcd --out /tmp/report
  k1m bench proxy-trace --trace-file life.jsonl.zst`,
		brief:    []string{"--nodes", "20", "--replicas", "20", "--objects", "10"},
		addFlags: options.AddFlags,
		validate: options.Validate,
		run: func(r benchRun) (benchResult, error) {
			result, err := storetrace.Run(r.cmd.Context(), r.dir, options, r.display)
			return resultOrError(&result, err != nil, err)
		},
	}
}
