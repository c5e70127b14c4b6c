package process

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

func TestKilledProcessIsGone(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := Of(cmd.Process.Pid)
	if err != nil || !id.Alive() {
		t.Fatalf("Of returned %+v, %v; want the identity of a running process", id, err)
	}
	if err := id.KillGroup(); err != nil {
		t.Fatal(err)
	}
	// The process is a zombie until Wait is called. AwaitExit does not wait for that.
	if err := id.AwaitExit(5 * time.Second); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("sleep was not killed")
	}
	if err := id.Signal(syscall.SIGTERM); !errors.Is(err, ErrGone) {
		t.Errorf("Signal to an exited process returned %v, want ErrGone", err)
	}
}

func TestReusedPIDHasAnotherIdentity(t *testing.T) {
	id, err := Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	id.StartTicks--
	if id.Alive() {
		t.Error("an identity with another start time than the running process is alive")
	}
	if err := id.KillGroup(); !errors.Is(err, ErrGone) {
		t.Errorf("KillGroup with another start time than the running process returned %v, want ErrGone", err)
	}
}
