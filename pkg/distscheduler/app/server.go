// Package app is the dist-scheduler program: a kube-scheduler that finds nodes through an index. To add
// out-of-tree plugins, build your own program, as for kube-scheduler:
//
//	func main() {
//		os.Exit(cli.Run(app.NewSchedulerCommand(app.WithPlugin(name, factory))))
//	}
package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"
	genericserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/tools/cache"
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
	schedulerapp "k8s.io/kubernetes/cmd/kube-scheduler/app"
	schedulerconfig "k8s.io/kubernetes/cmd/kube-scheduler/app/config"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/attach"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/explain"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/simulate"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/webhook"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

const name = "dist-scheduler"

// Option is kube-scheduler's type for options that register out-of-tree plugins.
type Option = schedulerapp.Option

// WithPlugin returns an option that registers an out-of-tree plugin under a name. A profile in
// the KubeSchedulerConfiguration must enable it.
func WithPlugin(name string, factory runtime.PluginFactory) Option {
	return schedulerapp.WithPlugin(name, factory)
}

// NewSchedulerCommand returns the dist-scheduler command, with plugins in addition to those of
// kube-scheduler.
func NewSchedulerCommand(plugins ...Option) *cobra.Command {
	opts, intakeOptions, replicas := options.NewOptions(), webhook.DefaultOptions(), newReplicas()
	cmd := &cobra.Command{
		Use: name,
		Long: `dist-scheduler assigns pods to nodes as kube-scheduler does: with its flags,
its KubeSchedulerConfiguration, plugins, events and metrics. It makes the decisions of
a kube-scheduler that scores every node, but uses an index of nodes and pod classes
instead of evaluating every node for each pod. Pods that the index does not support
are scheduled by kube-scheduler's full scan; the metric
scheduler_index_fallbacks_total counts them by reason.

Commands that answer questions about a cluster, and write nothing to it:
  explain   why a pod is on its node, or on none, and why not on another one
  simulate  where pods would be placed in a snapshot of a cluster

See "dist-scheduler explain --help" and "dist-scheduler simulate --help".`,
		PersistentPreRunE: func(*cobra.Command, []string) error { return opts.ComponentGlobalsRegistry.Set() },
		RunE:              func(cmd *cobra.Command, _ []string) error { return run(cmd, opts, intakeOptions, replicas, plugins) },
		Args: func(cmd *cobra.Command, args []string) error {
			if slices.ContainsFunc(args, func(arg string) bool { return arg != "" }) {
				return fmt.Errorf("%q does not take any arguments, got %q", cmd.CommandPath(), args)
			}
			return nil
		},
	}
	sets := opts.Flags
	replicas.addFlags(sets.FlagSet("replicas"))
	intakeOptions.AddFlags(sets.FlagSet("intake"))
	verflag.AddFlags(sets.FlagSet("global"))
	globalflag.AddGlobalFlags(sets.FlagSet("global"), cmd.Name(), logs.SkipLoggingConfigurationFlags())
	for _, set := range sets.FlagSets {
		cmd.Flags().AddFlagSet(set)
	}
	cmd.CompletionOptions.DisableDefaultCmd = true
	columns, _, _ := term.TerminalSize(cmd.OutOrStdout())
	cliflag.SetUsageAndHelpFunc(cmd, *sets, columns)
	if err := cmd.MarkFlagFilename("config", "yaml", "yml", "json"); err != nil {
		klog.Background().Error(err, "Failed to mark flag --config as a file name")
	}
	for _, offline := range []*cobra.Command{explain.NewCommand(plugins), simulate.NewCommand(plugins)} {
		// The help of dist-scheduler lists all feature gates.
		gates := *sets.FlagSet("feature gate").Lookup("feature-gates")
		gates.Usage = "feature gates as for dist-scheduler: `NAME=true|false,...`"
		offline.Flags().AddFlag(&gates)
		cmd.AddCommand(offline)
	}
	return cmd
}

// run is the composition root: it creates the scheduler, its index or its replica, and the webhook. It runs them
// until the process is stopped.
func run(cmd *cobra.Command, opts *options.Options, intakeOptions webhook.Options, replicas *replicas, plugins []Option) error {
	verflag.PrintAndExitIfRequested()
	if err := intakeOptions.Validate(); err != nil {
		return err
	}
	if err := attach.UnsupportedGate(); err != nil && intakeOptions.Enabled() {
		return fmt.Errorf("--intake webhook: %w; use --intake watch", err)
	}
	gate := opts.ComponentGlobalsRegistry.FeatureGateFor(basecompatibility.DefaultKubeComponent)
	if err := logsapi.ValidateAndApply(opts.Logs, gate); err != nil {
		// Logging is not configured yet, so print the error.
		fmt.Fprintf(os.Stderr, "%v\n", err)
		os.Exit(1)
	}
	cliflag.PrintFlags(cmd.Flags())
	informers, err := cache.NewInformerName(name)
	if err != nil {
		return err
	}
	opts.InformerName = informers

	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	intake := newPodIntake(ctx, intakeOptions)
	go func() {
		select {
		case <-genericserver.SetupSignalHandler():
		case <-replicas.resigned:
		}
		intake.stop()
		replicas.leave(ctx)
		cancel()
	}()
	if err := replicas.validate(); err != nil {
		return err
	}
	keepHeadroom()
	if err := attach.Prepare(); err != nil {
		return err
	}
	start := attachIndex
	if replicas.enabled() {
		start = replicas.attachReplica
	}
	cfg, sched, err := start(ctx, opts, plugins)
	if err != nil {
		return err
	}
	if intakeOptions.Enabled() {
		// Without leader election every replica would write the webhook configuration.
		if replicas.enabled() && !cfg.ComponentConfig.LeaderElection.LeaderElect {
			return errors.New("--intake webhook requires leader election among replicas; set --leader-elect or use --intake watch")
		}
		if err := intake.start(sched, attach.Profiles(&cfg.ComponentConfig), cfg, replicas.leads()); err != nil {
			return err
		}
	}
	if replicas.enabled() {
		go replicas.serve(ctx)
		go fitThreads(ctx, process.OwnCPUTime)
	}
	gate.(featuregate.MutableFeatureGate).AddMetrics()
	opts.ComponentGlobalsRegistry.AddMetrics()
	return schedulerapp.Run(ctx, cfg, sched)
}

// attachIndex creates a scheduler that keeps all nodes in one index.
func attachIndex(ctx context.Context, opts *options.Options, plugins []Option) (*schedulerconfig.CompletedConfig, *kubescheduler.Scheduler, error) {
	cfg, sched, err := schedulerapp.Setup(ctx, opts, plugins...)
	if err != nil {
		return nil, nil, err
	}
	profiles := attach.Profiles(&cfg.ComponentConfig)
	if err := attach.Trim(sched, profiles, cfg.InformerFactory); err != nil {
		return nil, nil, fmt.Errorf("setting up the informers: %w", err)
	}
	switch err := attach.Attach(sched, profiles); {
	case errors.Is(err, attach.ErrPodGroups), errors.Is(err, attach.ErrResizePreemption):
		klog.FromContext(ctx).Info("Scheduling without an index", "reason", err)
	case err != nil:
		return nil, nil, fmt.Errorf("setting up the index: %w", err)
	default:
		attach.Debug(ctx, sched, cfg.InformerFactory)
	}
	return cfg, sched, nil
}
