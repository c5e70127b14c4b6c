// Package app is the dist-scheduler program: a kube-scheduler that finds nodes by an
// index. Whoever has plugins of their own makes a program with them, as with
// kube-scheduler:
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
	utilfeature "k8s.io/apiserver/pkg/util/feature"
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
	upstream "k8s.io/kubernetes/cmd/kube-scheduler/app"
	schedulerconfig "k8s.io/kubernetes/cmd/kube-scheduler/app/config"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/features"
	inner "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/attach"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/webhook"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

const name = "dist-scheduler"

// Option is kube-scheduler's, so what registers plugins there does so here.
type Option = upstream.Option

// WithPlugin registers a plugin, for a configuration to enable.
func WithPlugin(name string, factory runtime.PluginFactory) Option {
	return upstream.WithPlugin(name, factory)
}

// NewSchedulerCommand is the program, with plugins beside those of kube-scheduler.
func NewSchedulerCommand(plugins ...Option) *cobra.Command {
	opts, pods, replicas := options.NewOptions(), webhook.DefaultOptions(), newReplicaOptions()
	cmd := &cobra.Command{
		Use: name,
		Long: `dist-scheduler assigns pods to nodes as kube-scheduler does: with its flags,
its KubeSchedulerConfiguration, its plugins, events and metrics. It decides like a
kube-scheduler that scores every node, and keeps an index of nodes and classes of
pods so that it does not have to look at every node for each pod. Pods that the
index cannot rank nodes for are scheduled by kube-scheduler's own search; the metric
scheduler_index_fallbacks_total says how many, and why.`,
		PersistentPreRunE: func(*cobra.Command, []string) error { return opts.ComponentGlobalsRegistry.Set() },
		RunE:              func(cmd *cobra.Command, _ []string) error { return run(cmd, opts, pods, replicas, plugins) },
		Args: func(cmd *cobra.Command, args []string) error {
			if slices.ContainsFunc(args, func(arg string) bool { return arg != "" }) {
				return fmt.Errorf("%q does not take any arguments, got %q", cmd.CommandPath(), args)
			}
			return nil
		},
	}
	sets := opts.Flags
	replicas.addFlags(sets.FlagSet("replicas"))
	pods.AddFlags(sets.FlagSet("intake"))
	verflag.AddFlags(sets.FlagSet("global"))
	globalflag.AddGlobalFlags(sets.FlagSet("global"), cmd.Name(), logs.SkipLoggingConfigurationFlags())
	for _, set := range sets.FlagSets {
		cmd.Flags().AddFlagSet(set)
	}
	columns, _, _ := term.TerminalSize(cmd.OutOrStdout())
	cliflag.SetUsageAndHelpFunc(cmd, *sets, columns)
	if err := cmd.MarkFlagFilename("config", "yaml", "yml", "json"); err != nil {
		klog.Background().Error(err, "Failed to mark flag filename")
	}
	return cmd
}

func run(cmd *cobra.Command, opts *options.Options, pods webhook.Options, replicas *replicaOptions, plugins []Option) error {
	verflag.PrintAndExitIfRequested()
	if err := pods.Validate(); err != nil {
		return err
	}
	gate := opts.ComponentGlobalsRegistry.FeatureGateFor(basecompatibility.DefaultKubeComponent)
	if err := logsapi.ValidateAndApply(opts.Logs, gate); err != nil {
		// There is no logger to report it.
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
	intake := newPodIntake(ctx, pods)
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
	if pods.Enabled() {
		if utilfeature.DefaultFeatureGate.Enabled(features.GenericWorkload) {
			return fmt.Errorf("--intake webhook: %w; use --intake watch", attach.ErrPodGroups)
		}
		// Several that lead would each have the webhook for itself.
		if replicas.enabled() && !cfg.ComponentConfig.LeaderElection.LeaderElect {
			return errors.New("--intake webhook needs one replica that leads; add --leader-elect, or use --intake watch")
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
	return upstream.Run(ctx, cfg, sched)
}

// attachIndex makes a scheduler that has all nodes.
func attachIndex(ctx context.Context, opts *options.Options, plugins []Option) (*schedulerconfig.CompletedConfig, *inner.Scheduler, error) {
	cfg, sched, err := upstream.Setup(ctx, opts, plugins...)
	if err != nil {
		return nil, nil, err
	}
	profiles := attach.Profiles(&cfg.ComponentConfig)
	if err := attach.Trim(sched, profiles, cfg.InformerFactory); err != nil {
		return nil, nil, fmt.Errorf("setting up the informers: %w", err)
	}
	switch err := attach.Attach(sched, profiles); {
	case errors.Is(err, attach.ErrPodGroups):
		klog.FromContext(ctx).Info("Scheduling without an index", "reason", err)
	case err != nil:
		return nil, nil, fmt.Errorf("setting up the index: %w", err)
	default:
		attach.Debug(ctx, sched, cfg.InformerFactory)
	}
	return cfg, sched, nil
}
