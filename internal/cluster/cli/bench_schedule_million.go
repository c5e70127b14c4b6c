package cli

import (
	"github.com/k8s-1m/k8s-1m/internal/bench/scheduler/inmemory"
)

func newBenchMillion() benchmark {
	options := inmemory.DefaultOptions()
	return benchmark{
		use:   "schedule-million --nodes N --pods P",
		short: "Measure a scheduler in memory, without a cluster, and check its decisions",
		long: `Measure a scheduler in memory, without a cluster. The scheduler runs in this process. It receives
nodes and pods directly and binds pods without an API server, so the measurement contains only the
scheduler's own cost. It does not include loading the nodes.

The command then compares a sample of the decisions with a reference, which filters and scores every
node with the plugins of kube-scheduler. It fails if a decision differs, or if a node has more pods
than its capacity allows.`,
		example: `  k1m bench schedule-million --nodes 1000000 --pods 1000000
  k1m bench schedule-million --nodes 5000 --pods 2000 --scheduler kube-scheduler -o json
  k1m bench schedule-million --nodes 1000 --pods 2000 --pod-kind mixed --check 1.0`,
		brief:    []string{"--nodes", "10000", "--pods", "10000"},
		addFlags: options.AddFlags,
		validate: func() error {
			options.Complete()
			return options.Validate()
		},
		run: func(r benchRun) (benchResult, error) {
			result, err := inmemory.Run(r.cmd.Context(), options, r.display)
			return resultOrError(&result, result.Decided == 0, err)
		},
	}
}
