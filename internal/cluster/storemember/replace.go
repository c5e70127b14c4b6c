package storemember

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/util/storemembers"
)

const (
	privateDirMode  = 0o700
	privateFileMode = 0o600
)

// Replace replaces a member by one without data, as an operator does after a member has lost its disk: the member is
// killed, and comes back as another one. It waits until the new member is ready.
func (c Cluster) Replace(ctx context.Context, member string) error {
	if c.Config.Settings.KeepsData() {
		file := c.Config.Settings.MemberFiles(c.Config.DataDir(c.Dir), member).Replace
		if err := os.WriteFile(file, nil, privateFileMode); err != nil {
			return fmt.Errorf("preparing the replacement of %s: %w", member, err)
		}
	}
	// A member that keeps nothing on the disk is another one after its process has ended.
	pid, err := c.Kill(member)
	if err != nil {
		return err
	}
	return c.awaitReady(ctx, member, pid)
}

// Prepare is called before a member of a store is started. If the member is to be replaced, Prepare replaces it in the
// cluster. It repeats that until it succeeds or ctx is done: a cluster refuses changes of its members while it is not sure
// that a majority is connected, for some seconds after a fault.
func Prepare(ctx context.Context, dir clusterdir.Dir, config clusterdir.Config, member string, log *slog.Logger) error {
	files := config.Settings.MemberFiles(config.DataDir(dir), member)
	if _, err := os.Stat(files.Replace); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for {
		err := replace(ctx, dir, config, member, files)
		if err == nil {
			log.Info("member of the store was replaced", "member", member)
			return nil
		}
		log.Warn("cannot replace the member of the store; trying again", "member", member, "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retryInterval):
		}
	}
}

// replace removes the data of a member. etcd's member is also removed from the cluster and added again; mem_etcd's joins again by
// itself. It may be called again after an error.
func replace(ctx context.Context, dir clusterdir.Dir, config clusterdir.Config, member string, files clusterdir.MemberFiles) error {
	ctx, cancel := context.WithTimeout(ctx, 2*requestTimeout)
	defer cancel()
	data := config.Settings.StoreDir(config.DataDir(dir), member)
	if config.Settings.Store == clusterdir.StoreMemEtcd {
		return errors.Join(os.RemoveAll(data), os.Mkdir(data, privateDirMode), os.Remove(files.Replace))
	}
	client, err := dialOthers(ctx, dir, config, member)
	if err != nil {
		return err
	}
	defer client.Close()
	peerURL := config.Ports.URL(clusterdir.StorePeerPort(member))
	if err := storemembers.Remove(ctx, client, peerURL); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(data), os.Mkdir(data, privateDirMode)); err != nil {
		return err
	}
	added, err := client.MemberAdd(ctx, []string{peerURL})
	if err != nil {
		return fmt.Errorf("adding the member: %w", err)
	}
	if err := awaitKnown(ctx, dir, config, member, added.Member.ID); err != nil {
		return err
	}
	return errors.Join(os.WriteFile(files.Joined, nil, privateFileMode), os.Remove(files.Replace))
}

// awaitKnown waits until the other members know the new member. It asks any of them for its ID when it starts, and one that
// lags behind would answer with that of the member that was removed. A member that does not answer here is not waited for.
func awaitKnown(ctx context.Context, dir clusterdir.Dir, config clusterdir.Config, member string, id uint64) error {
	for _, other := range config.Settings.StoreMembers(clusterdir.MainStore) {
		if other == member {
			continue
		}
		for {
			known, err := knows(ctx, component.NewMemberClient(config, dir, other), id)
			if known || err != nil && ctx.Err() == nil {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s does not know the new member: %w", other, ctx.Err())
			case <-time.After(retryInterval):
			}
		}
	}
	return nil
}

// knows reports whether a member says that the cluster has a member with an ID.
func knows(ctx context.Context, parameters component.StoreClient, id uint64) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, retryInterval*5)
	defer cancel()
	client, err := parameters.Dial(ctx, requestTimeout)
	if err != nil {
		return false, err
	}
	defer client.Close()
	return storemembers.Knows(ctx, client, id)
}
