// Package process identifies processes by process ID and start time. A process that reuses the ID of
// an earlier process therefore has another identity.
package process

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// ErrGone means that the process has ended. Another process may have the same ID now.
var ErrGone = errors.New("process has ended")

const pollInterval = 20 * time.Millisecond

// Identity identifies a process. It stays unique if the process ID is reused later.
type Identity struct {
	PID int `json:"pid"`
	// StartTicks is the start time of the process, in clock ticks since boot.
	StartTicks uint64 `json:"startTicks"`
}

// Of returns the identity of the process that currently has this ID, or an error that wraps ErrGone.
func Of(pid int) (Identity, error) {
	stat, err := stat(pid)
	if err != nil {
		return Identity{}, err
	}
	return Identity{PID: pid, StartTicks: stat.Starttime}, nil
}

// Alive reports whether the identified process is running. A zombie is not alive.
func (id Identity) Alive() bool {
	_, err := id.stat()
	return err == nil
}

// Signal sends a signal to the process, but not to its process group.
func (id Identity) Signal(signal syscall.Signal) error {
	if !id.Alive() {
		return ErrGone
	}
	return syscall.Kill(id.PID, signal)
}

// KillGroup kills the process group that the process leads. If it leads none, KillGroup kills only the
// process.
func (id Identity) KillGroup() error {
	if !id.Alive() {
		return ErrGone
	}
	err := syscall.Kill(-id.PID, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) {
		return syscall.Kill(id.PID, syscall.SIGKILL)
	}
	return err
}

// AwaitExit waits until the process has exited. It returns an error after the timeout.
func (id Identity) AwaitExit(timeout time.Duration) error {
	for deadline := time.Now().Add(timeout); id.Alive(); time.Sleep(pollInterval) {
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d is still running after %s", id.PID, timeout)
		}
	}
	return nil
}

// Usage is the resource usage of a process.
type Usage struct {
	CPU      time.Duration // CPU time since the start of the process
	Resident int64         // current resident memory in bytes
}

// Usage returns the resource usage of the process, or an error that wraps ErrGone.
func (id Identity) Usage() (Usage, error) {
	stat, err := id.stat()
	if err != nil {
		return Usage{}, err
	}
	return Usage{
		CPU:      time.Duration(stat.CPUTime() * float64(time.Second)),
		Resident: int64(stat.ResidentMemory()),
	}, nil
}

// stat returns the kernel's statistics of the process, or an error that wraps ErrGone.
func (id Identity) stat() (procfs.ProcStat, error) {
	if id.PID <= 0 {
		return procfs.ProcStat{}, ErrGone
	}
	stat, err := stat(id.PID)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	if stat.Starttime != id.StartTicks || stat.State == "Z" || stat.State == "X" {
		return procfs.ProcStat{}, ErrGone
	}
	return stat, nil
}

// stat returns the kernel's statistics of the process that currently has this ID.
func stat(pid int) (procfs.ProcStat, error) {
	proc, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, fmt.Errorf("%w: %w", ErrGone, err)
	}
	stat, err := proc.Stat()
	if err != nil {
		return procfs.ProcStat{}, fmt.Errorf("%w: %w", ErrGone, err)
	}
	return stat, nil
}
