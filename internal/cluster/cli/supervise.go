package cli

import (
	"context"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
	"github.com/k8s-1m/k8s-1m/internal/cluster/lifecycle"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// newSupervise is what `up` starts; nobody else can, for want of the files
// that it inherits.
func newSupervise(name *string) *cobra.Command {
	return &cobra.Command{
		Use:    lifecycle.SuperviseCommand,
		Hidden: true,
		Args:   usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			leash := os.NewFile(lifecycle.LeashFD, "leash")
			if _, err := leash.Stat(); err != nil {
				return usage.Errorf("supervise is for `k1m up` only")
			}
			alone := clusterdir.AdoptLock(lifecycle.LockFD)
			defer alone.Release()
			return supervise(cmd.Context(), *name, leash)
		},
	}
}

func supervise(ctx context.Context, name string, leash *os.File) error {
	dir, config, err := existing(name)
	if err != nil {
		return err
	}
	if config.Settings.KeepsData() {
		data, err := clusterdir.LockData(config.DataDir(dir))
		if err != nil {
			return err
		}
		defer data.Release()
	}
	components, err := component.Plan(config, dir, component.FindBinary)
	if err != nil {
		return err
	}
	client, err := kube.Config(dir.Kubeconfig(pki.SuperAdmin.File))
	if err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	klog.SetSlogLogger(log)
	return supervisor.Run(ctx, supervisor.Options{
		Dir:        dir,
		Components: components,
		Address:    config.Ports.Address("supervisor"),
		BeforeStart: map[string]func(context.Context) error{
			component.Kwok: func(ctx context.Context) error { return kube.ReleaseNodeLeases(ctx, client) },
		},
		AfterReady: map[string]func(context.Context) error{
			clusterdir.APIServerName(0): func(ctx context.Context) error { return kube.Bootstrap(ctx, client) },
			// Nobody waits for it; it ends with kwok.
			component.Kwok: func(ctx context.Context) error {
				go func() {
					if err := kube.WakePods(ctx, client, component.NodeAnnotation); err != nil && ctx.Err() == nil {
						log.Warn("looking for pods that kwok has passed over", "error", err)
					}
				}()
				return nil
			},
		},
		Leash: leash,
		Log:   log,
	})
}
