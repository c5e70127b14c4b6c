// Command tenants is a dist-scheduler with the out-of-tree plugin Tenants. It is the example of docs/plugins.md. It has all
// flags of dist-scheduler, and its commands explain and simulate know the plugin.
package main

import (
	"os"

	"k8s.io/component-base/cli"

	"github.com/k8s-1m/k8s-1m/pkg/distscheduler/app"
)

func main() {
	os.Exit(cli.Run(app.NewSchedulerCommand(app.WithPlugin(Name, New))))
}
