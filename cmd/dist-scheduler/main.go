// Command dist-scheduler is a kube-scheduler that finds nodes by an index: the same
// flags, configuration, plugins, events and metrics, at a cost for each pod that
// does not grow with the nodes.
package main

import (
	"os"

	"k8s.io/component-base/cli"

	"github.com/k8s-1m/k8s-1m/pkg/distscheduler/app"
)

func main() { os.Exit(cli.Run(app.NewSchedulerCommand())) }
