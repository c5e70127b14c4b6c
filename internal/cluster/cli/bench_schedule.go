package cli

import (
	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/bench/scheduler/realcluster"
)

func newBenchSchedule() benchmark {
	options := realcluster.DefaultOptions()
	return benchmark{
		use:   "schedule --nodes N --pods P",
		short: "Compare schedulers in a cluster with simulated nodes",
		long: `Compare schedulers in a cluster with a real control plane and simulated nodes. The cluster is
created again for each scheduler, with the same nodes and the same pods.

Pods are created as fast as the API server accepts them, which also limits the rate at which they
can be bound. To compare schedulers, use the CPU time per pod. It is the total of all replicas of a
scheduler.

The cluster is named "` + experiment.DefaultCluster + `" unless --name is set, and is removed at the end. The
command fails if a node has more pods than its capacity allows, or if a pod was not bound.`,
		example: `  k1m bench schedule --nodes 5000 --pods 10000
  k1m bench schedule --nodes 1000 --pods 2000 --schedulers dist-scheduler -o json
  k1m bench schedule --nodes 5000 --pods 5000 --schedulers dist-scheduler --scheduler-replicas 1,2,4
  k1m bench schedule --nodes 1000 --pods 2000 --template pod.yaml --keep`,
		brief:    []string{"--nodes", "300", "--pods", "1500"},
		addFlags: options.AddFlags,
		validate: options.Validate,
		run: func(r benchRun) (benchResult, error) {
			result, err := realcluster.Run(r.cmd.Context(), r.dir, options, r.display)
			return resultOrError(&result, len(result.Schedulers) == 0, err)
		},
	}
}
