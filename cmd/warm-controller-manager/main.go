// Command warm-controller-manager is a kube-controller-manager with a warm standby. It has the controllers, flags and
// pages of kube-controller-manager, but a process that is not the leader already has the objects of the cluster in
// memory, and the leader releases its lease when it is stopped.
package main

import (
	"os"
	_ "time/tzdata" // time zones of CronJobs

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of client-go
	_ "k8s.io/component-base/metrics/prometheus/version"  // metric of the version

	"github.com/k8s-1m/k8s-1m/internal/controllermanager"
)

func main() { os.Exit(cli.Run(controllermanager.NewCommand())) }
