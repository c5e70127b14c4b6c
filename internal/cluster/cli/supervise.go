package cli

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
	"github.com/k8s-1m/k8s-1m/internal/cluster/lifecycle"
	"github.com/k8s-1m/k8s-1m/internal/cluster/peerproxy"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
	"github.com/k8s-1m/k8s-1m/internal/cluster/storemember"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// newSupervise returns the hidden command that runs the supervisor. Only `k1m up` can start it, because the
// supervisor needs the open files that it inherits from `k1m up`.
func newSupervise(name *string) *cobra.Command {
	return &cobra.Command{
		Use:    lifecycle.SuperviseCommand,
		Hidden: true,
		Args:   usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			parentPipe := os.NewFile(lifecycle.ParentPipeFD, "parent pipe")
			if _, err := parentPipe.Stat(); err != nil {
				return usage.Errorf("supervise can only be started by `k1m up`")
			}
			lock := clusterdir.AdoptLock(lifecycle.LockFD)
			defer lock.Release()
			return supervise(cmd.Context(), *name, parentPipe)
		},
	}
}

// supervise runs the supervisor of a cluster until the cluster is stopped.
func supervise(ctx context.Context, name string, parentPipe *os.File) error {
	dir, config, err := loadCluster(name)
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
	components, err := component.Build(config, dir, component.FindBinary)
	if err != nil {
		return err
	}
	client, err := kube.Config(dir.Kubeconfig(pki.SuperAdmin.File))
	if err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	klog.SetSlogLogger(log)
	go renewCertificates(ctx, config, dir, log)
	handlers, stopForwarding, err := forwardPeers(dir, config)
	if err != nil {
		return err
	}
	defer stopForwarding()
	return supervisor.Run(ctx, supervisor.Options{
		Dir:         dir,
		Components:  components,
		Address:     config.Ports.Address("supervisor"),
		BeforeStart: beforeStart(dir, config, client, log),
		AfterReady: map[string]func(context.Context) error{
			clusterdir.APIServerName(0): func(ctx context.Context) error { return kube.Bootstrap(ctx, client) },
			// WakePods runs in the background, because kwok is ready before it has finished.
			component.Kwok: func(ctx context.Context) error {
				go func() {
					if err := kube.WakePods(ctx, client, kube.SimulatedNodeAnnotation); err != nil && ctx.Err() == nil {
						log.Warn("cannot change the pods that kwok skipped", "error", err)
					}
				}()
				return nil
			},
		},
		ParentPipe: parentPipe,
		Handlers:   handlers,
		Log:        log,
	})
}

// forwardPeers forwards the connections between the members of the store until stop is called, if the settings say so. It
// returns the handler with which members are cut off.
func forwardPeers(dir clusterdir.Dir, config clusterdir.Config) (handlers map[string]http.Handler, stop func(), err error) {
	if !config.Settings.ForwardsPeers() {
		return nil, func() {}, nil
	}
	proxy, err := peerproxy.Start(config, func() map[string]int { return storemember.Processes(dir) })
	if err != nil {
		return nil, nil, err
	}
	return map[string]http.Handler{peerproxy.Path: proxy.Handler(config.Settings)}, proxy.Close, nil
}

// beforeStart returns what is done before a component is started, by component name.
func beforeStart(dir clusterdir.Dir, config clusterdir.Config, client *rest.Config, log *slog.Logger) map[string]func(context.Context) error {
	hooks := map[string]func(context.Context) error{
		component.Kwok: func(ctx context.Context) error { return kube.ReleaseNodeLeases(ctx, client) },
	}
	if config.Settings.HasStoreReplicas() && config.Settings.KeepsData() {
		for _, member := range config.Settings.StoreMembers(clusterdir.MainStore) {
			hooks[member] = func(ctx context.Context) error { return storemember.Prepare(ctx, dir, config, member, log) }
		}
	}
	return hooks
}

// renewInterval is the interval between checks of the certificates of scheduler replicas. They are
// renewed ten days before they expire.
const renewInterval = time.Hour

// renewCertificates renews the certificates of scheduler replicas until the context ends. A cluster may
// run for longer than they are valid. The replicas read changed files again.
func renewCertificates(ctx context.Context, config clusterdir.Config, dir clusterdir.Dir, log *slog.Logger) {
	wait.UntilWithContext(ctx, func(context.Context) {
		if err := component.EnsureReplicaCertificates(config, dir, time.Now()); err != nil {
			log.Error("cannot renew the certificates of the scheduler replicas; trying again", "error", err, "after", renewInterval)
		}
	}, renewInterval)
}
