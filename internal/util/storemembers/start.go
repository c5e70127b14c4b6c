package storemembers

import (
	"os/exec"
	"runtime"
)

// startAndWait starts a process, and closes ended when it has ended. The kernel kills a process with PDEATHSIG when the
// thread that started it exits, so this thread waits for the process.
func startAndWait(cmd *exec.Cmd, ended chan<- struct{}) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			// The error is the exit code or the signal, which the log has too.
			_ = cmd.Wait()
		}
		close(ended)
	}()
	return <-started
}
