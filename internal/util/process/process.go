// Package process identifies processes by PID and start time, so that a process with a reused
// PID is never mistaken for the original one.
package process

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// ErrGone is returned if the process has ended, even if its PID is in use again.
var ErrGone = errors.New("process has ended")

const pollInterval = 20 * time.Millisecond

// Identity identifies a process uniquely until the next boot.
type Identity struct {
	// PID is the process ID.
	PID int `json:"pid"`
	// StartTicks is the start time in clock ticks since boot.
	StartTicks uint64 `json:"startTicks"`
}

// Of returns the identity of the process that has a PID now, or ErrGone.
func Of(pid int) (Identity, error) {
	stat, err := stat(pid)
	if err != nil {
		return Identity{}, err
	}
	return Identity{PID: pid, StartTicks: stat.Starttime}, nil
}

// Alive reports whether the process still runs. A zombie does not count as running.
func (id Identity) Alive() bool {
	_, err := id.stat()
	return err == nil
}

// Signal sends a signal to the process but not to its group.
func (id Identity) Signal(signal syscall.Signal) error {
	if !id.Alive() {
		return ErrGone
	}
	return syscall.Kill(id.PID, signal)
}

// KillGroup kills the process and its process group.
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

// AwaitExit waits until the process has ended. It returns an error after the timeout.
func (id Identity) AwaitExit(timeout time.Duration) error {
	for deadline := time.Now().Add(timeout); id.Alive(); time.Sleep(pollInterval) {
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d still runs after %s", id.PID, timeout)
		}
	}
	return nil
}

// Usage is the resource usage of a process.
type Usage struct {
	// CPU is the CPU time since the start of the process.
	CPU time.Duration
	// Resident is the resident memory in bytes.
	Resident int64
}

// Usage returns the CPU time and the resident memory of the process.
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
