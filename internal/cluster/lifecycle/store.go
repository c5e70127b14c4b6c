package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/peerproxy"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
)

// storeReadyTimeout limits the time until the store of a stopped cluster is ready. A store with millions of
// keys reads them first.
const storeReadyTimeout = 5 * time.Minute

// errStoreExited means that the store of a stopped cluster exited while it was used.
var errStoreExited = errors.New("the store exited")

// UseStores calls use while the stores of a cluster run. [component.NewStoreClient] returns their parameters. If the
// cluster is stopped, UseStores starts its stores for the duration of the call, with the ports in the configuration
// that use gets. Meanwhile no other k1m can start or stop the cluster.
func UseStores(ctx context.Context, dir clusterdir.Dir, use func(context.Context, clusterdir.Config) error) (err error) {
	// Check before the lock is taken, because taking the lock creates a file that is never removed.
	if _, err := clusterdir.Load(dir); err != nil {
		return err
	}
	lock, err := Lock(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()

	config, err := clusterdir.Load(dir)
	if err != nil {
		return err
	}
	config.Settings.Complete()
	supervisorLock, err := dir.LockSupervisor()
	if errors.Is(err, clusterdir.ErrBusy) {
		return use(ctx, config)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, supervisorLock.Release()) }()
	return useStopped(ctx, dir, config, use)
}

// useStopped starts the stores of a stopped cluster, calls use and stops the stores.
func useStopped(ctx context.Context, dir clusterdir.Dir, config clusterdir.Config, use func(context.Context, clusterdir.Config) error) (err error) {
	if err := requireData(dir, config); err != nil {
		return err
	}
	if state, err := supervisor.ReadState(dir); err == nil {
		if err := killLeftovers(dir, state); err != nil {
			return err
		}
	}
	// Another process may use the ports of the last run.
	if config.Ports, err = config.Ports.Assign(config.Name, config.Settings.StorePortNames(), nil); err != nil {
		return err
	}
	// A certificate may have expired since the cluster was stopped.
	if _, err := pki.Ensure(dir.PKI(), config.Name, component.ServiceCIDR(), net.ParseIP(clusterdir.Loopback)); err != nil {
		return addRemedy(err)
	}
	return withStores(ctx, dir, config, func(ctx context.Context) error { return use(ctx, config) })
}

// withStores runs the stores of a cluster that is not running while it calls use. The files of the cluster
// exist, and the ports of the stores are assigned.
func withStores(ctx context.Context, dir clusterdir.Dir, config clusterdir.Config, use func(context.Context) error) (err error) {
	data, err := clusterdir.LockData(config.DataDir(dir))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, data.Release()) }()
	stores, err := component.BuildStores(config, dir, component.FindBinary)
	if err != nil {
		return err
	}
	if config.Settings.ForwardsPeers() {
		// Nobody cuts members off here, so the proxy need not know their processes.
		proxy, err := peerproxy.Start(config, func() map[string]int { return nil })
		if err != nil {
			return err
		}
		defer proxy.Close()
	}
	return runStores(ctx, dir, stores, use)
}

// requireData returns an error if a stopped cluster has no data.
func requireData(dir clusterdir.Dir, config clusterdir.Config) error {
	if config.Settings.StoreAddress != "" {
		return fmt.Errorf("cluster %q is stopped, and its store (--store-address) is not run by k1m; start it with `k1m up --name %s`", dir.Name(), dir.Name())
	}
	for _, store := range config.Settings.StoreComponents() {
		_, err := os.Stat(config.Settings.StoreDir(config.DataDir(dir), store))
		if !config.Settings.KeepsData() || errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cluster %q is stopped and has no data; start it with `k1m up --name %s`", dir.Name(), dir.Name())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// runStores runs the members of stores while it calls use. The context of use is done if one exits. All are started before
// the first is awaited, because the members of a store become ready together.
func runStores(ctx context.Context, dir clusterdir.Dir, stores []component.Component, use func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The stores are stopped after use has returned, and not when ctx is done.
	storeContext, stop := context.WithCancel(context.Background())
	defer stop()
	var running sync.WaitGroup
	for _, store := range stores {
		running.Go(func() {
			err := runProcess(storeContext, store, dir.Log(store.Name))
			cancel(fmt.Errorf("%w: %w; its log is %s", errStoreExited, err, dir.Log(store.Name)))
		})
	}
	err := awaitStores(ctx, dir, stores)
	if err == nil {
		err = use(ctx)
	}
	// Read before the stores are stopped, which cancels ctx too.
	cause := context.Cause(ctx)
	stop()
	running.Wait()
	if errors.Is(cause, errStoreExited) {
		return cause
	}
	return err
}

// awaitStores waits until all stores are ready.
func awaitStores(ctx context.Context, dir clusterdir.Dir, stores []component.Component) error {
	ctx, cancel := context.WithTimeout(ctx, storeReadyTimeout)
	defer cancel()
	for _, store := range stores {
		if err := supervisor.AwaitReady(ctx, store.Ready); err != nil {
			return fmt.Errorf("waiting for the store: %w; its log is %s", err, dir.Log(store.Name))
		}
	}
	return nil
}

// runProcess runs the process of a component until it exits, as [supervisor.Process] describes it.
func runProcess(ctx context.Context, c component.Component, logFile string) error {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	// The process must not outlive k1m, and must live as long as this call.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := supervisor.Process(ctx, c, log).Run(); err != nil {
		return err
	}
	return errors.New("exit status 0")
}
