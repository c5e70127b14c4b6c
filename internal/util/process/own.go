package process

import (
	"time"

	"golang.org/x/sys/unix"
)

// OwnCPUTime returns the CPU time that this process has used, with the resolution of the kernel's
// process clock (usually nanoseconds).
func OwnCPUTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &now); err != nil {
		// Linux always has this clock.
		panic(err)
	}
	return time.Duration(now.Nano())
}
