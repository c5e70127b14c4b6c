// Package process names processes so that a pid that the kernel gave to
// somebody else is never mistaken for ours.
package process

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// ErrGone says that the process has ended, whoever has its pid now.
var ErrGone = errors.New("process has ended")

const pollInterval = 20 * time.Millisecond

// Identity is a process beyond reuse of its pid.
type Identity struct {
	PID int `json:"pid"`
	// StartTicks is when it started, in clock ticks since boot.
	StartTicks uint64 `json:"startTicks"`
}

// Of identifies the process that has this pid now.
func Of(pid int) (Identity, error) {
	stat, err := stat(pid)
	if err != nil {
		return Identity{}, err
	}
	return Identity{PID: pid, StartTicks: stat.Starttime}, nil
}

// Alive says whether this very process still runs; a zombie does not.
func (id Identity) Alive() bool {
	_, err := id.stat()
	return err == nil
}

// Signal sends to the process alone.
func (id Identity) Signal(signal syscall.Signal) error {
	if !id.Alive() {
		return ErrGone
	}
	return syscall.Kill(id.PID, signal)
}

// KillGroup ends the process and everything in the group that it leads.
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

// AwaitExit waits until the process is gone, or says that it is not.
func (id Identity) AwaitExit(timeout time.Duration) error {
	for deadline := time.Now().Add(timeout); id.Alive(); time.Sleep(pollInterval) {
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d still runs after %s", id.PID, timeout)
		}
	}
	return nil
}

// Usage is what a process has taken of the machine.
type Usage struct {
	CPU      time.Duration
	Resident int64 // bytes
}

// Usage reads CPU time since the start and memory now.
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
