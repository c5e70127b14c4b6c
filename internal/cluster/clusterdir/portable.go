package clusterdir

import (
	"fmt"
	"slices"
	"strings"
)

// storeDirFlags are flags of the stores that name a directory. A copy of a cluster must not use the
// directories of the original.
var storeDirFlags = []string{"data-dir", "snapshot-dir", "wal-dir"}

// Portable returns the settings for a copy of the cluster that has its data in the default directory. It
// removes settings that refer to directories or to the port of the original, or to CPUs that this machine does
// not have. changes describes what it changed, for users.
func (s Settings) Portable() (portable Settings, changes []string) {
	if s.DataDir != "" {
		changes = append(changes, fmt.Sprintf("--data-dir %s is not used; the data is in the cluster's directory", s.DataDir))
		s.DataDir = ""
	}
	if s.APIServerPort != 0 {
		changes = append(changes, fmt.Sprintf("--apiserver-port %d is not used, because the original may use it; the first kube-apiserver gets a free port", s.APIServerPort))
		s.APIServerPort = 0
	}
	if s.WALMode == WALNone {
		changes = append(changes, fmt.Sprintf("--wal-mode is %s, because %s would not keep the restored data", WALBuffered, WALNone))
		s.WALMode = WALBuffered
	}
	if s.ReplicationLog == LogMemory {
		changes = append(changes, fmt.Sprintf("--replication-log is %s, because %s would not keep the restored data", LogBuffered, LogMemory))
		s.ReplicationLog = LogBuffered
	}
	if s.TraceFile != "" {
		changes = append(changes, fmt.Sprintf("--trace-file %s is not used; the trace is in the cluster's directory", s.TraceFile))
		s.TraceFile = ""
	}
	kept := slices.DeleteFunc(slices.Clone(s.StoreArgs), namesDirectory)
	if len(kept) < len(s.StoreArgs) {
		changes = append(changes, fmt.Sprintf("--store-arg: flags that name directories (%s) are not used", strings.Join(storeDirFlags, ", ")))
		s.StoreArgs = kept
	}
	if err := s.validateCPUs(); err != nil {
		changes = append(changes, fmt.Sprintf("--cpus is not used: %v", err))
		s.CPUs = nil
	}
	return s, changes
}

// namesDirectory reports whether an argument of a store, key=value, sets one of storeDirFlags.
func namesDirectory(arg string) bool {
	key, _, _ := strings.Cut(arg, "=")
	return slices.Contains(storeDirFlags, strings.TrimLeft(key, "-"))
}
