package cli

import (
	"github.com/k8s-1m/k8s-1m/internal/bench/scheduler/inmemory"
)

func newBenchMillion() benchmark {
	options := inmemory.DefaultOptions()
	return benchmark{
		use:   "schedule-million --nodes N --pods P",
		short: "Measure a scheduler alone, in memory, and check its decisions",
		long: `Measure a scheduler alone: it runs in this process, without a cluster, nodes and
pods are handed to it in memory, and binds only report back, so that its own cost
shows. Loading the nodes is not part of what is measured.

Some of the decisions are then held against what kube-scheduler's plugins say when
every node is filtered and scored. The command fails if one deviates, or if a node
has more pods than it can take.`,
		example: `  k1m bench schedule-million --nodes 1000000 --pods 1000000
  k1m bench schedule-million --nodes 5000 --pods 2000 --scheduler kube-scheduler -o json
  k1m bench schedule-million --nodes 1000 --pods 2000 --pod-kind mixed --check 1.0`,
		brief:    []string{"--nodes", "10000", "--pods", "10000"},
		addFlags: options.AddFlags,
		validate: func() error {
			options.Complete()
			return options.Validate()
		},
		run: func(r benchRun) (findings, error) {
			result, err := inmemory.Run(r.cmd.Context(), options, r.display)
			return judge(&result, result.Decided == 0, err)
		},
	}
}
