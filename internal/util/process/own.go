package process

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// OwnCPUTime returns the CPU time that this process has used, with the resolution of the kernel's
// process clock (usually nanoseconds).
func OwnCPUTime() time.Duration {
	now, err := cpuTime(unix.CLOCK_PROCESS_CPUTIME_ID)
	if err != nil {
		// Linux always has this clock.
		panic(err)
	}
	return now
}

// CPUTime returns the CPU time that a process has used, with the resolution of the kernel's process clock.
// It includes all threads, also those that have exited.
func CPUTime(pid int) (time.Duration, error) {
	// This is the macro MAKE_PROCESS_CPUCLOCK of the kernel with the clock type CPUCLOCK_SCHED.
	const cpuClockSched = 2
	used, err := cpuTime(int32(^pid<<3 | cpuClockSched))
	if err != nil {
		return 0, fmt.Errorf("reading the CPU time of process %d: %w", pid, err)
	}
	return used, nil
}

func cpuTime(clock int32) (time.Duration, error) {
	var used unix.Timespec
	err := unix.ClockGettime(clock, &used)
	return time.Duration(used.Nano()), err
}
