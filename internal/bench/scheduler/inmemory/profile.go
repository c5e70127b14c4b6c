package inmemory

import (
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
)

// withProfiles runs f, and writes a CPU profile of f and a heap profile at its end if the options name files
// for them.
func (o *Options) withProfiles(f func() error) (err error) {
	if o.CPUProfile != "" {
		stop, err := profileCPU(o.CPUProfile)
		if err != nil {
			return err
		}
		defer stop()
	}
	if err := f(); err != nil || o.HeapProfile == "" {
		return err
	}
	return writeHeap(o.HeapProfile)
}

func profileCPU(name string) (stop func(), err error) {
	file, err := os.Create(name)
	if err != nil {
		return nil, fmt.Errorf("--cpu-profile: %w", err)
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, fmt.Errorf("--cpu-profile: %w", err)
	}
	return func() {
		pprof.StopCPUProfile()
		file.Close()
	}, nil
}

func writeHeap(name string) error {
	file, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("--heap-profile: %w", err)
	}
	runtime.GC() // so that the profile contains live objects only
	if err := pprof.WriteHeapProfile(file); err != nil {
		return fmt.Errorf("--heap-profile: %w", err)
	}
	return file.Close()
}
