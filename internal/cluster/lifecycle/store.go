package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
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
	return runStores(ctx, dir, stores, use)
}

// requireData returns an error if a stopped cluster has no data.
func requireData(dir clusterdir.Dir, config clusterdir.Config) error {
	if config.Settings.StoreAddress != "" {
		return fmt.Errorf("cluster %q is stopped, and its store (--store-address) is not run by k1m; start it with `k1m up --name %s`", dir.Name(), dir.Name())
	}
	for _, store := range config.Settings.StoreNames() {
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

// runStores runs stores while it calls use. The context of use is done if a store exits.
func runStores(ctx context.Context, dir clusterdir.Dir, stores []component.Component, use func(context.Context) error) error {
	if len(stores) == 0 {
		return use(ctx)
	}
	return runStore(ctx, stores[0], dir.Log(stores[0].Name), func(ctx context.Context) error {
		return runStores(ctx, dir, stores[1:], use)
	})
}

// runStore runs a store while it calls use. The context of use is done if the store exits.
func runStore(ctx context.Context, store component.Component, logFile string, use func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The store is stopped after use has returned, and not when ctx is done.
	storeContext, stop := context.WithCancel(context.Background())
	defer stop()
	exited := make(chan error, 1)
	go func() {
		err := runProcess(storeContext, store, logFile)
		cancel(fmt.Errorf("%w: %w; its log is %s", errStoreExited, err, logFile))
		exited <- err
	}()
	readyContext, cancelReady := context.WithTimeout(ctx, storeReadyTimeout)
	defer cancelReady()
	err := supervisor.AwaitReady(readyContext, store.Ready)
	if err != nil {
		err = fmt.Errorf("waiting for the store: %w; its log is %s", err, logFile)
	} else {
		err = use(ctx)
	}
	// Read before the store is stopped, which cancels ctx too. The cause can be the exit of another store.
	cause := context.Cause(ctx)
	stop()
	<-exited
	if errors.Is(cause, errStoreExited) {
		return cause
	}
	return err
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
