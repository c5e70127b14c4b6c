package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// machine on which it was measured.
type machine struct {
	Processor   string `json:"processor"`
	Cores       int    `json:"cores"`
	MemoryBytes uint64 `json:"memoryBytes"`
	Kernel      string `json:"kernel"`
	// Load average of the minute before: what else was going on.
	Load float64 `json:"load"`
}

func (m machine) String() string {
	return fmt.Sprintf("%s, %d cores, %.0f GiB, Linux %s, load %.1f before", m.Processor, m.Cores, float64(m.MemoryBytes)/gibibyte, m.Kernel, m.Load)
}

// thisMachine as far as it tells; what it does not stays empty.
func thisMachine() machine {
	m := machine{Processor: "unknown processor", Cores: runtime.NumCPU()}
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

// fileSystem says on what a folder lies.
func fileSystem(folder string) string {
	const unknown = "unknown file system"
	path, err := filepath.Abs(folder)
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
		// Of two in one place the later one is on top.
		if inside && len(mount.MountPoint) >= longest {
			name, longest = mount.FSType+" ("+mount.Source+")", len(mount.MountPoint)
		}
	}
	return name
}

// versions of the programs; one that cannot tell is left out, and shows when it
// is needed.
func (l *lab) versions(ctx context.Context) map[string]string {
	versions := map[string]string{}
	for _, store := range []string{ours, etcd} {
		if output, err := exec.CommandContext(ctx, l.program(store), "--version").Output(); err == nil {
			versions[store] = firstLine(string(output))
		}
	}
	if output, err := exec.CommandContext(ctx, filepath.Join("build", "version.sh")).Output(); err == nil {
		versions["this tree"] = firstLine(string(output))
	}
	if info, err := buildinfo.ReadFile(l.program(etcdBenchmark)); err == nil {
		versions["etcd's benchmark"] = info.Main.Version
	}
	return versions
}
