package storedata

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// RunTool runs a program that creates the data directory of a store, such as mem_etcd or etcdutl. The error has the
// last line of its output.
func RunTool(ctx context.Context, binary string, args ...string) error {
	output, err := run(ctx, binary, args...)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%s: %s (%w)", filepath.Base(binary), lastLine(output), err)
	}
	return nil
}

// run runs a program and returns its output. The program ends if this process is killed, so that it does not
// write to a directory that another k1m removes.
func run(ctx context.Context, binary string, args ...string) ([]byte, error) {
	// The kernel kills the process when the thread that started it exits (PDEATHSIG).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd.CombinedOutput()
}

// lastLine returns the last line of the output of a program that is not empty.
func lastLine(output []byte) string {
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	return lines[len(lines)-1]
}
