package process

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// RaiseOpenFiles raises the limit on open files to at least needed, for this process and those that it starts later.
// It returns the limit that is then in force, which is lower if the process may not raise it.
func RaiseOpenFiles(needed uint64) (uint64, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("reading the limit on open files: %w", err)
	}
	hard := max(limit.Max, needed)
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: hard, Max: hard}) == nil {
		return hard, nil
	}
	// The hard limit stays. Programs that need many files raise their own limit to it.
	return limit.Max, nil
}
