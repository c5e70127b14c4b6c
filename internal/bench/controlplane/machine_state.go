package controlplane

import (
	"fmt"

	"github.com/prometheus/procfs"
)

// machineState is the free CPU and memory of the machine.
type machineState struct {
	idle, total float64 // seconds, summed over all cores, since boot
	available   uint64  // bytes
	memory      uint64
}

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

// idleSince returns the idle fraction of all cores since before, 0 to 1.
func (m machineState) idleSince(before machineState) float64 {
	return (m.idle - before.idle) / max(m.total-before.total, 1e-9)
}

func (m machineState) availableShare() float64 { return float64(m.available) / float64(m.memory) }
