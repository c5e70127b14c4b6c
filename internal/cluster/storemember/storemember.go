// Package storemember injects faults into the members of a cluster's store, for experiments: it kills a member ([Kill]),
// cuts it off from the others ([Partition]), and replaces it by one without data ([Replace]).
//
// The supervisor starts a killed member again. To replace a member, this package writes a file that the supervisor finds
// before it starts the member the next time ([Prepare]); so a replacement continues if k1m or the supervisor is killed.
package storemember

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/peerproxy"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// LeaderName stands for the member that leads.
const LeaderName = "leader"

const (
	requestTimeout = 5 * time.Second
	retryInterval  = 200 * time.Millisecond
)

// Cluster is a running cluster with several members of its store.
type Cluster struct {
	Dir    clusterdir.Dir
	Config clusterdir.Config
}

// members returns the component names of the members.
func (c Cluster) members() []string { return c.Config.Settings.StoreMembers(clusterdir.MainStore) }

// Find returns the component name of a member. The name "leader" stands for the member that leads. It returns a usage error
// for any other name.
func (c Cluster) Find(ctx context.Context, name string) (string, error) {
	if !c.Config.Settings.HasStoreReplicas() {
		return "", usage.Errorf("the store of cluster %q has one member; start a cluster with --store-replicas 3", c.Config.Name)
	}
	if name == LeaderName {
		return Leader(ctx, c.Dir, c.Config)
	}
	if !slices.Contains(c.members(), name) {
		return "", usage.Errorf("%q: no such member of the store; choose %s or %s", name, strings.Join(c.members(), ", "), LeaderName)
	}
	return name, nil
}

// Leader returns the component name of the member that leads.
func Leader(ctx context.Context, dir clusterdir.Dir, config clusterdir.Config) (string, error) {
	var last error
	for _, member := range config.Settings.StoreMembers(clusterdir.MainStore) {
		leads, err := leads(ctx, component.NewMemberClient(config, dir, member))
		if leads {
			return member, nil
		}
		last = errors.Join(err, last)
	}
	if last != nil {
		return "", fmt.Errorf("no member of the store leads: %w", last)
	}
	return "", errors.New("no member of the store leads")
}

// leads reports whether a member calls itself the leader.
func leads(ctx context.Context, parameters component.StoreClient) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	client, err := parameters.Dial(ctx, requestTimeout)
	if err != nil {
		return false, err
	}
	defer client.Close()
	status, err := client.Status(ctx, parameters.Endpoint)
	if err != nil {
		return false, err
	}
	return status.Leader != 0 && status.Leader == status.Header.MemberId, nil
}

// Kill kills the process of a member as a crash would, and returns its process ID. The supervisor starts it again.
func (c Cluster) Kill(member string) (pid int, err error) {
	state, err := supervisor.ReadState(c.Dir)
	if err != nil {
		return 0, err
	}
	for _, running := range state.Components {
		if running.Name != member {
			continue
		}
		if err := running.Process.KillGroup(); err != nil {
			return 0, fmt.Errorf("killing %s: %w; see `k1m status --name %s`", member, err, c.Config.Name)
		}
		return running.Process.PID, nil
	}
	return 0, fmt.Errorf("%s does not run; see `k1m status --name %s`", member, c.Config.Name)
}

// Partition cuts a member off from the others for some time; 0 ends it.
func (c Cluster) Partition(ctx context.Context, member string, duration time.Duration) error {
	if !c.Config.Settings.ForwardsPeers() {
		return usage.Errorf("members of cluster %q are connected directly, so none can be cut off; start the cluster with --store-faults", c.Config.Name)
	}
	state, err := supervisor.ReadState(c.Dir)
	if err != nil {
		return err
	}
	return peerproxy.Request(ctx, state.Address, member, duration)
}

// Processes returns the process IDs of the members of a cluster's store that run, by component name.
func Processes(dir clusterdir.Dir) map[string]int {
	pids := map[string]int{}
	// Without a state file, no member runs.
	state, _ := supervisor.ReadState(dir)
	for _, running := range state.Components {
		if clusterdir.IsStore(running.Name) && running.Process.PID != 0 {
			pids[running.Name] = running.Process.PID
		}
	}
	return pids
}

// awaitReady waits until the supervisor reports that a member is ready in another process than the given one.
func (c Cluster) awaitReady(ctx context.Context, member string, before int) error {
	for {
		state, err := supervisor.ReadState(c.Dir)
		if err != nil {
			return err
		}
		for _, running := range state.Components {
			if running.Name == member && running.Phase == supervisor.Ready && running.Process.PID != before {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready yet: %w; its log is %s", member, context.Cause(ctx), c.Dir.Log(member))
		case <-time.After(retryInterval):
		}
	}
}

// dialOthers returns a client of all members but one.
func dialOthers(ctx context.Context, dir clusterdir.Dir, config clusterdir.Config, member string) (*clientv3.Client, error) {
	others := slices.DeleteFunc(config.Settings.StoreMembers(clusterdir.MainStore), func(name string) bool { return name == member })
	return component.NewMemberClient(config, dir, others...).Dial(ctx, requestTimeout)
}
