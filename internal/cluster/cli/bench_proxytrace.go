package cli

import (
	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/bench/storetrace"
)

func newBenchProxyTrace() benchmark {
	options := storetrace.DefaultOptions()
	return benchmark{
		use:   "proxy-trace",
		short: "Record what a cluster asks of its store in the course of its life",
		long: `Record what a cluster asks of its store in the course of its life: a control plane
with etcd-proxy before its store is made, nodes come, a Deployment is rolled out,
scaled and replaced, Jobs, custom resources and namespaces come and go, and all of it
is reported: which shapes requests have, and which are not one of the five that
Kubernetes is said to use (create, update and delete of what has not changed, get of
a key, list of a prefix).

The cluster, called "` + experiment.DefaultCluster + `" unless --name says otherwise, is removed at the end.`,
		example: `  k1m bench proxy-trace
  k1m bench proxy-trace --nodes 1000 --replicas 1000 --store etcd --out /tmp/report
  k1m bench proxy-trace --recording life.jsonl.zst`,
		brief:    []string{"--nodes", "20", "--replicas", "20", "--objects", "10"},
		addFlags: options.AddFlags,
		validate: options.Validate,
		run: func(r benchRun) (findings, error) {
			result, err := storetrace.Run(r.cmd.Context(), r.dir, options, r.display)
			return judge(&result, err != nil, err)
		},
	}
}
