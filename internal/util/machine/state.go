package machine

import (
	"fmt"

	"github.com/prometheus/procfs"
)

// State is the CPU usage and the memory of the machine at a time.
type State struct {
	// Available and Memory are the available and the total memory in bytes.
	Available, Memory uint64

	idle, total float64 // idle time and total time since boot, summed over all cores, in seconds
}

// ReadState reads the current state from /proc.
func ReadState() (State, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return State{}, err
	}
	stat, err := fs.Stat()
	if err != nil {
		return State{}, err
	}
	memory, err := fs.Meminfo()
	if err != nil {
		return State{}, err
	}
	if memory.MemAvailableBytes == nil || memory.MemTotalBytes == nil {
		return State{}, fmt.Errorf("/proc/meminfo has no MemAvailable or MemTotal")
	}
	c := stat.CPUTotal
	idle := c.Idle + c.Iowait
	return State{
		idle: idle, total: idle + c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + c.Steal,
		Available: *memory.MemAvailableBytes, Memory: *memory.MemTotalBytes,
	}, nil
}

// IdleSince returns the fraction of the core time since before that was idle, from 0 to 1.
func (s State) IdleSince(before State) float64 {
	return (s.idle - before.idle) / max(s.total-before.total, 1e-9)
}

// AvailableShare returns the available memory as a fraction of the total memory, from 0 to 1.
func (s State) AvailableShare() float64 { return float64(s.Available) / float64(s.Memory) }
