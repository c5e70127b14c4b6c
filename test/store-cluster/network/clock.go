package network

import "os/exec"

// ownClock is the start of a command line that gives a process a monotonic clock of its own, with another offset at each
// start, as on another machine or after a restart of the machine. A member must not compare its clock with that of another
// member, or with what it stored before.
//
// The wall clock cannot be changed for one process without changing it for the machine: time namespaces do not cover
// CLOCK_REALTIME, and etcd, a Go program, reads it without calling a library that could be replaced. mem_etcd reads the wall
// clock only to date messages and to check the expiry of JWTs and certificates.
var ownClock = []string{"sh", "-c", `exec unshare --time --monotonic $(($$ * 100)) -- "$@"`, "sh"}

// hasOwnClocks reports whether this process may start others with [ownClock].
func hasOwnClocks() bool {
	return exec.Command(ownClock[0], append(ownClock[1:], "true")...).Run() == nil
}
