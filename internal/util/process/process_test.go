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
		t.Fatalf("%+v %v", id, err)
	}
	if err := id.KillGroup(); err != nil {
		t.Fatal(err)
	}
	// The process is a zombie until Wait. A zombie has exited.
	if err := id.AwaitExit(5 * time.Second); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("sleep was not killed")
	}
	if err := id.Signal(syscall.SIGTERM); !errors.Is(err, ErrGone) {
		t.Errorf("signal to an exited process: %v", err)
	}
}

func TestReusedPIDIsAnotherProcess(t *testing.T) {
	id, err := Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	id.StartTicks--
	if id.Alive() {
		t.Error("a process with another start time is alive")
	}
	if err := id.KillGroup(); !errors.Is(err, ErrGone) {
		t.Errorf("killing a process with another start time: %v", err)
	}
}
