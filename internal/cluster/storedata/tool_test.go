package storedata

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

// pidFileEnv makes the test binary a process that restores a store. It names the file to which the program
// of the restore writes its process ID.
const pidFileEnv = "K1M_TEST_PID_FILE"

// TestProgramOfAKilledRestoreEnds kills a process that runs a program.
func TestProgramOfAKilledRestoreEnds(t *testing.T) {
	if file := os.Getenv(pidFileEnv); file != "" {
		output, err := run(t.Context(), "sh", "-c", `echo $$ > "$0.new" && mv "$0.new" "$0" && exec sleep 60`, file)
		t.Fatalf("run() = %q, %v, want that it is killed before", output, err)
	}
	file := filepath.Join(t.TempDir(), "pid")
	restore := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	restore.Env = append(os.Environ(), pidFileEnv+"="+file)
	if err := restore.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = restore.Wait() }()
	defer func() { _ = restore.Process.Kill() }()
	program := startedProgram(t, file)
	if !program.Alive() {
		t.Fatal("the program ended before the process that runs it was killed")
	}
	if err := restore.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := program.AwaitExit(time.Minute); err != nil {
		t.Errorf("after its parent was killed: %v", err)
		_ = program.KillGroup()
	}
}

// startedProgram waits for the file with the process ID.
func startedProgram(t *testing.T, file string) process.Identity {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		content, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
		if err != nil {
			t.Fatal(err)
		}
		program, err := process.Of(pid)
		if err != nil {
			t.Fatal(err)
		}
		return program
	}
	t.Fatal("the program was not started")
	return process.Identity{}
}
