package realcluster

import (
	"fmt"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

// usageOf reads the resource usage of the components of a cluster.
type usageOf struct {
	dir    clusterdir.Dir
	config clusterdir.Config
}

// used is the CPU time since the components started, and their current memory.
type used struct{ scheduler, apiServers, store process.Usage }

// read returns the current usage. The usage of several schedulers or API servers is added up.
func (u usageOf) read() (used, error) {
	state, err := supervisor.ReadState(u.dir)
	if err != nil {
		return used{}, err
	}
	roles := map[string]func(*used) *process.Usage{
		"store": func(all *used) *process.Usage { return &all.store },
	}
	for _, scheduler := range u.config.Settings.Schedulers() {
		roles[scheduler] = func(all *used) *process.Usage { return &all.scheduler }
	}
	for i := range u.config.Settings.APIServers {
		roles[clusterdir.APIServerName(i)] = func(all *used) *process.Usage { return &all.apiServers }
	}
	var all used
	for _, c := range state.Components {
		role := roles[c.Name]
		if role == nil {
			continue
		}
		usage, err := c.Process.Usage()
		if err != nil {
			return used{}, fmt.Errorf("reading the resource usage of %s: %w; see `k1m logs %s --name %s`",
				c.Name, err, c.Name, u.config.Name)
		}
		role(&all).CPU += usage.CPU
		role(&all).Resident += usage.Resident
	}
	return all, nil
}

// controlPlane returns the total CPU time of schedulers, API servers and store.
func (u usageOf) controlPlane() (time.Duration, error) {
	all, err := u.read()
	return all.scheduler.CPU + all.apiServers.CPU + all.store.CPU, err
}
