package clusterdir

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// Values of Settings.ReplicationLog: what the members of a replicated mem_etcd keep on the disk.
const (
	LogFsync    = "fsync"
	LogBuffered = "buffered"
	LogMemory   = "memory"
)

const maxStoreReplicas = 7

// StoreMembers returns the component names of the members of a store: its own name if it has one member, otherwise
// store-1, store-2 and so on. store is the component name of a store.
func (s *Settings) StoreMembers(store string) []string {
	if store != MainStore || !s.HasStoreReplicas() {
		return []string{store}
	}
	members := make([]string, s.StoreReplicas)
	for i := range members {
		members[i] = MainStore + "-" + strconv.Itoa(i+1)
	}
	return members
}

// StoreComponents returns the component names of all members of all stores that k1m runs.
func (s *Settings) StoreComponents() (names []string) {
	for _, store := range s.StoreNames() {
		names = append(names, s.StoreMembers(store)...)
	}
	return names
}

// HasStoreReplicas reports whether the store has several members.
func (s *Settings) HasStoreReplicas() bool { return s.StoreAddress == "" && s.StoreReplicas > 1 }

// replicatesMemEtcd reports whether the store is a mem_etcd with several members, which has a replication log and no WAL
// mode.
func (s *Settings) replicatesMemEtcd() bool { return s.HasStoreReplicas() && s.Store == StoreMemEtcd }

// completeStoreReplicas sets the default of ReplicationLog.
func (s *Settings) completeStoreReplicas() {
	if s.replicatesMemEtcd() && s.ReplicationLog == "" {
		s.ReplicationLog = LogBuffered
	}
}

func (s *Settings) validateStoreReplicas() error {
	if s.StoreReplicas < 1 || s.StoreReplicas > maxStoreReplicas || s.StoreReplicas%2 == 0 {
		return usage.Errorf("--store-replicas %d: choose 1, 3, 5 or 7; an even number of members tolerates no more failures than one less", s.StoreReplicas)
	}
	if s.StoreReplicas > 1 && s.StoreAddress != "" {
		return usage.Errorf("--store-replicas %d: k1m does not run the store of --store-address; omit one of them", s.StoreReplicas)
	}
	switch {
	case s.ReplicationLog != "" && !slices.Contains([]string{LogFsync, LogBuffered, LogMemory}, s.ReplicationLog):
		return usage.Errorf("--replication-log %q: no such log; choose fsync, buffered or memory", s.ReplicationLog)
	case s.ReplicationLog != "" && !s.HasStoreReplicas():
		return usage.Errorf("--replication-log %s: the store has one member; add --store-replicas 3, or use --wal-mode", s.ReplicationLog)
	case s.ReplicationLog != "" && s.Store == StoreEtcd:
		return usage.Errorf("--replication-log %s: etcd always uses fsync; omit the flag or use --store mem_etcd", s.ReplicationLog)
	case s.ReplicationLog == LogMemory && s.DataDir != "":
		return usage.Errorf("--replication-log memory stores no data, so it cannot be combined with --data-dir; omit one of them")
	case s.StoreFaults && !s.HasStoreReplicas():
		return usage.Errorf("--store-faults: the store has one member; add --store-replicas 3, or omit it")
	case !s.HasStoreReplicas():
		return nil
	}
	switch i := slices.IndexFunc(s.StoreArgs, namesDirectory); {
	case s.replicatesMemEtcd() && s.WALMode != "":
		return usage.Errorf("--wal-mode %s is for a store with one member; with --store-replicas use --replication-log", s.WALMode)
	case s.Trace:
		return usage.Errorf("--store-replicas: etcd-proxy (--trace) connects to one member only; omit one of them")
	case len(s.StoreFor) > 0:
		return usage.Errorf("--store-replicas: own stores (--store-for) have one member; omit one of them")
	case i >= 0:
		return usage.Errorf("--store-replicas: each member needs its own directory; omit --store-arg %s", s.StoreArgs[i])
	}
	return nil
}

// ForwardsPeers reports whether the supervisor forwards the connections between the members of the store.
func (s *Settings) ForwardsPeers() bool { return s.HasStoreReplicas() && s.StoreFaults }

// StorePeerListenPort returns the name of the port on which a member listens for its peers if the supervisor listens on
// [StorePeerPort] and forwards connections.
func StorePeerListenPort(member string) string { return member + "-peer-listen" }

// describeMembers describes the members of the store for users; empty if it has one.
func (s *Settings) describeMembers() string {
	if !s.HasStoreReplicas() {
		return ""
	}
	text := fmt.Sprintf(", %d members", s.StoreReplicas)
	if s.ReplicationLog != "" {
		text += ", replication-log " + s.ReplicationLog
	}
	return text
}

// MemberFiles are the files in a data directory with which k1m replaces a member of a store.
type MemberFiles struct {
	// Replace exists while the member has to be replaced before it is started the next time.
	Replace string
	// Joined exists if the member was added to an existing cluster.
	Joined string
}

// MemberFiles returns the files of the member with the given component name.
func (s *Settings) MemberFiles(dataDir, member string) MemberFiles {
	dir := s.StoreDir(dataDir, member)
	return MemberFiles{Replace: filepath.Clean(dir) + ".replace", Joined: filepath.Clean(dir) + ".joined"}
}
