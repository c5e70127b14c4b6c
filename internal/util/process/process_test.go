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
	// Not reaped yet: a zombie counts as gone.
	if err := id.AwaitExit(5 * time.Second); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("sleep ended by itself")
	}
	if err := id.Signal(syscall.SIGTERM); !errors.Is(err, ErrGone) {
		t.Errorf("signal to a process that has ended: %v", err)
	}
}

func TestReusedPIDIsDetected(t *testing.T) {
	id, err := Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	id.StartTicks--
	if id.Alive() {
		t.Error("a process with a reused PID counts as the original one")
	}
	if err := id.KillGroup(); !errors.Is(err, ErrGone) {
		t.Errorf("killed another process: %v", err)
	}
}
