package controlplane

import (
	"fmt"

	"github.com/prometheus/procfs"
)

// machineState is the CPU usage and the memory of the machine at a time.
type machineState struct {
	idle, total float64 // idle time and total time since boot, summed over all cores, in seconds
	available   uint64  // memory in bytes
	memory      uint64  // total memory in bytes
}

// readMachine reads the current state from /proc.
func readMachine() (machineState, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return machineState{}, err
	}
	stat, err := fs.Stat()
	if err != nil {
		return machineState{}, err
	}
	memory, err := fs.Meminfo()
	if err != nil {
		return machineState{}, err
	}
	if memory.MemAvailableBytes == nil || memory.MemTotalBytes == nil {
		return machineState{}, fmt.Errorf("/proc/meminfo has no MemAvailable or MemTotal")
	}
	c := stat.CPUTotal
	idle := c.Idle + c.Iowait
	return machineState{
		idle: idle, total: idle + c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + c.Steal,
		available: *memory.MemAvailableBytes, memory: *memory.MemTotalBytes,
	}, nil
}

// idleSince returns the fraction of the core time since before that was idle, from 0 to 1.
func (m machineState) idleSince(before machineState) float64 {
	return (m.idle - before.idle) / max(m.total-before.total, 1e-9)
}

func (m machineState) availableShare() float64 { return float64(m.available) / float64(m.memory) }
