// Command dist-scheduler is a kube-scheduler that finds nodes by an index: the same
// flags, configuration, plugins, events and metrics, at a cost for each pod that
// does not grow with the nodes.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	genericserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/component-base/term"
	"k8s.io/component-base/version/verflag"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"

	"github.com/k8s-1m/k8s-1m/internal/scheduler"
)

const name = "dist-scheduler"

func main() { os.Exit(cli.Run(command(options.NewOptions()))) }

func command(opts *options.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: name,
		Long: `dist-scheduler assigns pods to nodes as kube-scheduler does: with its flags,
its KubeSchedulerConfiguration, its plugins, events and metrics. It decides like a
kube-scheduler that scores every node, and keeps an index of nodes and classes of
pods so that it does not have to look at every node for each pod. Pods that the
index cannot rank nodes for are scheduled by kube-scheduler's own search; the metric
scheduler_index_fallbacks_total says how many, and why.`,
		PersistentPreRunE: func(*cobra.Command, []string) error { return opts.ComponentGlobalsRegistry.Set() },
		RunE:              func(cmd *cobra.Command, _ []string) error { return run(cmd, opts) },
		Args:              cobra.NoArgs,
	}
	sets := opts.Flags
	verflag.AddFlags(sets.FlagSet("global"))
	globalflag.AddGlobalFlags(sets.FlagSet("global"), cmd.Name(), logs.SkipLoggingConfigurationFlags())
	for _, set := range sets.FlagSets {
		cmd.Flags().AddFlagSet(set)
	}
	columns, _, _ := term.TerminalSize(cmd.OutOrStdout())
	cliflag.SetUsageAndHelpFunc(cmd, *sets, columns)
	return cmd
}

func run(cmd *cobra.Command, opts *options.Options) error {
	verflag.PrintAndExitIfRequested()
	gate := opts.ComponentGlobalsRegistry.FeatureGateFor(basecompatibility.DefaultKubeComponent)
	if err := logsapi.ValidateAndApply(opts.Logs, gate); err != nil {
		return err
	}
	cliflag.PrintFlags(cmd.Flags())
	informers, err := cache.NewInformerName(name)
	if err != nil {
		return err
	}
	opts.InformerName = informers

	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	go func() {
		<-genericserver.SetupSignalHandler()
		cancel()
	}()
	if err := scheduler.Prepare(); err != nil {
		return err
	}
	cfg, sched, err := app.Setup(ctx, opts)
	if err != nil {
		return err
	}
	err = scheduler.Attach(sched, scheduler.Profiles(&cfg.ComponentConfig))
	if errors.Is(err, scheduler.ErrPodGroups) {
		klog.FromContext(ctx).Info("Scheduling without an index", "reason", err)
	} else if err != nil {
		return fmt.Errorf("setting up the index: %w", err)
	}
	gate.(featuregate.MutableFeatureGate).AddMetrics()
	opts.ComponentGlobalsRegistry.AddMetrics()
	return app.Run(ctx, cfg, sched)
}
