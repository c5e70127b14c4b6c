package cli

import (
	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/bench/scheduler/realcluster"
)

func newBenchIntake() benchmark {
	options := realcluster.DefaultIntakeOptions()
	return benchmark{
		use:   "watch-or-webhook --rates R,R,…",
		short: "Measure how soon dist-scheduler sees pods, by a watch and by a webhook",
		long: `Measure how soon dist-scheduler sees pods: pods are created at rising rates, until the
API server takes fewer than are to come, in a cluster whose scheduler has a watch, and
again in one whose scheduler has a webhook beside it. Pods are bound and run, as in any
cluster.

The time is from when the request to create a pod is sent until the pod is in the
scheduler's queue, which its log says; both clocks are that of this machine. The
cluster, called "` + experiment.DefaultCluster + `" unless --name says otherwise, is removed at the end. The
command fails if a pod was never seen.`,
		example: `  k1m bench watch-or-webhook
  k1m bench watch-or-webhook --rates 50,100,200,400 --duration 20s -o json
  k1m bench watch-or-webhook --intakes webhook,watch --nodes 2000`,
		brief:    []string{"--nodes", "100", "--rates", "50", "--duration", "5s"},
		addFlags: options.AddFlags,
		validate: options.Validate,
		run: func(r benchRun) (findings, error) {
			result, err := realcluster.RunIntake(r.cmd.Context(), r.dir, options, r.display)
			return judge(&result, len(result.Intakes) == 0, err)
		},
	}
}
