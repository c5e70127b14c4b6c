// Package controllermanager is kube-controller-manager with a warm standby. It runs upstream's controllers, and has
// upstream's flags and pages. It differs in when things happen:
//
//   - A process that is not the leader already runs the informers of its controllers (informers.go). When it becomes
//     the leader, it builds the controllers, whose handlers then receive the objects from memory (lead.go, package gate).
//   - SIGTERM stops the controllers first, and releases the lease after that (run.go).
//   - Writes of controllers pass a fence, which closes before another process can become the leader (clients.go,
//     election.go, package fence).
//
// docs/adr/0025-warm-standby.md explains why two processes never act at the same time.
package controllermanager

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/server"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/term"
	"k8s.io/component-base/version/verflag"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/config"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
)

const (
	// Program is the name of the program.
	Program = "warm-controller-manager"
	// componentName is the name of upstream's program, in its pages and in the leases.
	componentName = "kube-controller-manager"
)

// NewCommand returns the command of the program. It has the flags of upstream's kube-controller-manager.
func NewCommand() *cobra.Command {
	s, err := options.NewKubeControllerManagerOptions()
	utilruntime.Must(err)
	cmd := &cobra.Command{
		Use: Program,
		Long: `kube-controller-manager with a warm standby: a process that is not the leader already
has the objects of the cluster in memory, and starts its controllers at once when it
becomes the leader. On SIGTERM, the leader stops its controllers and then releases its
lease. Flags, controllers and pages are those of kube-controller-manager.`,
		Args: cobra.NoArgs,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			// As upstream does: controllers also use deprecated APIs, of which users cannot be rid.
			rest.SetDefaultWarningHandler(rest.NoWarnings{})
			return s.ComponentGlobalsRegistry.Set()
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			verflag.PrintAndExitIfRequested()
			if err := logsapi.ValidateAndApply(s.Logs, utilfeature.DefaultFeatureGate); err != nil {
				return err
			}
			cliflag.PrintFlags(cmd.Flags())
			c, err := configure(s)
			if err != nil {
				return err
			}
			return Run(server.SetupSignalContext(), c)
		},
	}
	addFlags(cmd, s)
	return cmd
}

// addFlags adds the flags of upstream's program.
func addFlags(cmd *cobra.Command, s *options.KubeControllerManagerOptions) {
	sets := s.Flags(app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases())
	s.ParsedFlags = &sets
	verflag.AddFlags(sets.FlagSet("global"))
	globalflag.AddGlobalFlags(sets.FlagSet("global"), cmd.Name(), logs.SkipLoggingConfigurationFlags())
	for _, set := range sets.FlagSets {
		cmd.Flags().AddFlagSet(set)
	}
	columns, _, _ := term.TerminalSize(cmd.OutOrStdout())
	cliflag.SetUsageAndHelpFunc(cmd, sets, columns)
}

// configure validates the options and returns the configuration.
func configure(s *options.KubeControllerManagerOptions) (*config.CompletedConfig, error) {
	// The context of the event broadcaster must not end with a signal: events are recorded until the end.
	c, err := s.Config(context.Background(), app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases())
	if err != nil {
		return nil, err
	}
	if c.ComponentConfig.Generic.LeaderMigrationEnabled {
		return nil, fmt.Errorf("--enable-leader-migration: %s has one lease; use kube-controller-manager until the migration is done", Program)
	}
	gates, ok := s.ComponentGlobalsRegistry.FeatureGateFor(basecompatibility.DefaultKubeComponent).(featuregate.MutableFeatureGate)
	if !ok {
		return nil, fmt.Errorf("the feature gates of %s cannot be changed", basecompatibility.DefaultKubeComponent)
	}
	gates.AddMetrics()
	s.ComponentGlobalsRegistry.AddMetrics()
	return c.Complete(), nil
}
