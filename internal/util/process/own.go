package process

import (
	"time"

	"golang.org/x/sys/unix"
)

// OwnCPUTime is what this process has used so far, to the nanosecond where the kernel
// counts so.
func OwnCPUTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &now); err != nil {
		// Linux always has this clock.
		panic(err)
	}
	return time.Duration(now.Nano())
}
