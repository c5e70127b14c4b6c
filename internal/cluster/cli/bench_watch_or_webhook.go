package cli

import (
	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/bench/scheduler/realcluster"
)

func newBenchIntake() benchmark {
	options := realcluster.DefaultIntakeOptions()
	return benchmark{
		use:   "watch-or-webhook --rates R,R,…",
		short: "Measure the delay until dist-scheduler receives a pod, by watch and by webhook",
		long: `Measure the delay until dist-scheduler receives a new pod. In one cluster the scheduler uses the
watch only; in a second cluster it also uses an admission webhook. Pods are created at increasing
rates, until the API server cannot sustain a rate. The pods are bound and run as usual.

The delay is the time from sending the create request until the pod is in the scheduler's queue,
according to the scheduler's log. All processes run on this machine and use its clock.

The cluster is named "` + experiment.DefaultCluster + `" unless --name is set, and is removed at the end. The
command fails if the scheduler did not receive a pod.`,
		example: `  k1m bench watch-or-webhook
  k1m bench watch-or-webhook --rates 50,100,200,400 --duration 20s -o json
  k1m bench watch-or-webhook --intakes webhook,watch --nodes 2000`,
		brief:    []string{"--nodes", "100", "--rates", "50", "--duration", "5s"},
		addFlags: options.AddFlags,
		validate: options.Validate,
		run: func(r benchRun) (benchResult, error) {
			result, err := realcluster.RunIntake(r.cmd.Context(), r.dir, options, r.display)
			return resultOrError(&result, len(result.Intakes) == 0, err)
		},
	}
}
