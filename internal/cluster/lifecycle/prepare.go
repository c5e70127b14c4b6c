package lifecycle

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
)

// prepare kills remaining processes of an earlier run, makes all checks that are possible before a process
// is started, assigns ports, and writes the files that the processes read.
func prepare(ctx context.Context, o UpOptions, config clusterdir.Config) ([]component.Component, clusterdir.Config, error) {
	if state, err := supervisor.ReadState(o.Dir); err == nil {
		if err := killLeftovers(o.Dir, state); err != nil {
			return nil, config, err
		}
	}
	settings, err := absolutePaths(config.Settings)
	if err != nil {
		return nil, config, err
	}
	config.Settings = settings
	err = checkSpace(o.Dir.Root(), o.MinFree)
	if err == nil {
		err = checkSpace(config.DataDir(o.Dir), o.MinFree)
	}
	if err == nil {
		err = checkStoreAddress(ctx, settings)
	}
	if err != nil {
		return nil, config, err
	}
	requested := map[string]int{}
	if settings.APIServerPort != 0 {
		requested[clusterdir.APIServerName(0)] = settings.APIServerPort
	}
	if config.Ports, err = config.Ports.Assign(config.Name, settings.PortNames(), requested); err != nil {
		return nil, config, err
	}
	components, err := component.Build(config, o.Dir, component.FindBinary)
	if err != nil {
		return nil, config, err
	}
	return components, config, writeFiles(o.Dir, config)
}

func writeFiles(dir clusterdir.Dir, config clusterdir.Config) error {
	if err := dir.Create(); err != nil {
		return addRemedy(err)
	}
	if config.Settings.KeepsData() {
		if err := prepareDataDir(dir, config); err != nil {
			return addRemedy(err)
		}
	}
	authority, err := pki.Ensure(dir.PKI(), config.Name, component.ServiceCIDR(), net.ParseIP(clusterdir.Loopback))
	if err != nil {
		return addRemedy(err)
	}
	if err := component.EnsureReplicaCertificates(config, dir, time.Now()); err != nil {
		return addRemedy(err)
	}
	if err := component.WriteKubeconfigs(config, dir, authority); err != nil {
		return addRemedy(err)
	}
	if err := component.WriteConfigFiles(config, dir); err != nil {
		return addRemedy(err)
	}
	if err := os.Remove(dir.StateFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return addRemedy(config.Save(dir))
}

// prepareDataDir creates the data directory if necessary, and checks that no other cluster uses it. It
// keeps no lock: the supervisor locks the data directory while it runs.
func prepareDataDir(dir clusterdir.Dir, config clusterdir.Config) error {
	dataDir := config.DataDir(dir)
	if err := clusterdir.PrepareData(dataDir, config.Settings); err != nil {
		return err
	}
	lock, err := clusterdir.LockData(dataDir)
	if err != nil {
		return err
	}
	return lock.Release()
}
