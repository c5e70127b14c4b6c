package app_test

import (
	"context"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-base/cli"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/k8s-1m/k8s-1m/pkg/distscheduler/app"
)

// rackPlugin is an out-of-tree plugin.
type rackPlugin struct{}

func (rackPlugin) Name() string { return "Rack" }

func newRackPlugin(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
	return rackPlugin{}, nil
}

// A scheduler with an out-of-tree plugin. A profile of the KubeSchedulerConfiguration must
// enable "Rack".
func ExampleNewSchedulerCommand() {
	command := app.NewSchedulerCommand(app.WithPlugin("Rack", newRackPlugin))
	os.Exit(cli.Run(command))
}
