// Command dist-scheduler is a kube-scheduler that finds nodes with an index. It has the flags,
// configuration, plugins, events and metrics of kube-scheduler, but the cost of scheduling a pod does not
// grow with the number of nodes.
package main

import (
	"os"

	"k8s.io/component-base/cli"

	"github.com/k8s-1m/k8s-1m/pkg/distscheduler/app"
)

func main() { os.Exit(cli.Run(app.NewSchedulerCommand())) }
