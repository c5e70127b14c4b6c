// Package machine describes the machine on which a benchmark runs: processor, memory, kernel, load and
// file systems.
package machine

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

const gibibyte = 1 << 30

// Machine describes a machine at the start of a measurement.
type Machine struct {
	Processor   string `json:"processor"`
	Cores       int    `json:"cores"`
	MemoryBytes uint64 `json:"memoryBytes"`
	Kernel      string `json:"kernel"`
	// Load is the 1-minute load average at the start of the measurement. A high value means that other
	// processes may have affected the result.
	Load float64 `json:"load"`
}

func (m Machine) String() string {
	return fmt.Sprintf("%s, %d cores, %.0f GiB, Linux %s, load %.1f before", m.Processor, m.Cores, float64(m.MemoryBytes)/gibibyte, m.Kernel, m.Load)
}

// This describes the machine on which this process runs. If a value cannot be read, the processor is
// "unknown processor" and any other field is 0 or empty.
func This() Machine {
	m := Machine{Processor: "unknown processor", Cores: runtime.NumCPU()}
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return m
	}
	if processors, err := proc.CPUInfo(); err == nil && len(processors) > 0 && processors[0].ModelName != "" {
		m.Processor = processors[0].ModelName
	}
	if memory, err := proc.Meminfo(); err == nil && memory.MemTotalBytes != nil {
		m.MemoryBytes = *memory.MemTotalBytes
	}
	if load, err := proc.LoadAvg(); err == nil {
		m.Load = load.Load1
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	return m
}

// FileSystem returns the type and the source of the file system that contains a directory, such as
// "ext4 (/dev/vda)".
func FileSystem(directory string) string {
	const unknown = "unknown file system"
	path, err := filepath.Abs(directory)
	if err != nil {
		return unknown
	}
	mounts, err := procfs.GetMounts()
	if err != nil {
		return unknown
	}
	name, longest := unknown, -1
	for _, mount := range mounts {
		inside := mount.MountPoint == "/" || path == mount.MountPoint || strings.HasPrefix(path, mount.MountPoint+"/")
		// A later mount hides an earlier mount on the same path.
		if inside && len(mount.MountPoint) >= longest {
			name, longest = mount.FSType+" ("+mount.Source+")", len(mount.MountPoint)
		}
	}
	return name
}
