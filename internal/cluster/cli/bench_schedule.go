package cli

import (
	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/bench/scheduler/realcluster"
)

func newBenchSchedule() benchmark {
	options := realcluster.DefaultOptions()
	return benchmark{
		use:   "schedule --nodes N --pods P",
		short: "Measure schedulers one after the other in a real cluster",
		long: `Measure schedulers one after the other in a real cluster: a control plane with
simulated nodes, made anew for each of them, with the same nodes and the same pods.
Pods are created as fast as the API server takes them, which bounds how fast they
can be bound; CPU a pod says what the scheduler costs, with all of its replicas.

The cluster, called "` + experiment.DefaultCluster + `" unless --name says otherwise, is removed at the end. The
command fails if a node has more pods than it can take, or a pod found none.`,
		example: `  k1m bench schedule --nodes 5000 --pods 10000
  k1m bench schedule --nodes 1000 --pods 2000 --schedulers dist-scheduler -o json
  k1m bench schedule --nodes 5000 --pods 5000 --schedulers dist-scheduler --scheduler-replicas 1,2,4
  k1m bench schedule --nodes 1000 --pods 2000 --template pod.yaml --keep`,
		brief:    []string{"--nodes", "300", "--pods", "1500"},
		addFlags: options.AddFlags,
		validate: options.Validate,
		run: func(r benchRun) (findings, error) {
			result, err := realcluster.Run(r.cmd.Context(), r.dir, options, r.display)
			return judge(&result, len(result.Schedulers) == 0, err)
		},
	}
}
