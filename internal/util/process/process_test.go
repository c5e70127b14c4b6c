package process

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

func TestIdentityEndsWithItsProcess(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := Of(cmd.Process.Pid)
	if err != nil || !id.Alive() {
		t.Fatalf("Of() = %+v, %v, want a process that is alive", id, err)
	}
	if err := id.KillGroup(); err != nil {
		t.Fatal(err)
	}
	// The process is a zombie until Wait. A zombie has exited.
	if err := id.AwaitExit(time.Minute); err != nil {
		t.Errorf("AwaitExit() of a killed process = %v, want nil", err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("Wait() = nil, want an error because sleep was killed")
	}
	if err := id.Signal(syscall.SIGTERM); !errors.Is(err, ErrGone) {
		t.Errorf("Signal() to an exited process = %v, want %v", err, ErrGone)
	}
}

func TestReusedPIDIsAnotherProcess(t *testing.T) {
	id, err := Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	id.StartTicks--
	if id.Alive() {
		t.Error("Alive() of a process with another start time = true, want false")
	}
	if err := id.KillGroup(); !errors.Is(err, ErrGone) {
		t.Errorf("KillGroup() of a process with another start time = %v, want %v", err, ErrGone)
	}
}
