package lifecycle

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// File descriptors that the supervisor inherits.
const (
	ParentPipeFD = 3 // read end of a pipe; `k1m up` has the write end
	LockFD       = 4 // file of the supervisor lock
)

// SuperviseCommand is the hidden subcommand that runs the supervisor.
const SuperviseCommand = "supervise"

// launch starts the supervisor in a new session, so that neither a hangup of the terminal nor Ctrl-C
// reaches it. The supervisor shares supervisorLock. It stops the cluster if this process exits before
// calling [supervisor.Detach] with parentPipe.
func launch(dir clusterdir.Dir, supervisorLock *clusterdir.Lock) (parentPipe io.WriteCloser, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding the k1m executable: %w", err)
	}
	log, err := os.OpenFile(dir.Log("supervisor"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the supervisor's log: %w", err)
	}
	defer log.Close()
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer reader.Close()

	cmd := exec.Command(self, SuperviseCommand, "--name", dir.Name())
	cmd.Env = append(os.Environ(), "K1M_HOME="+dir.Home())
	cmd.Dir = dir.Root()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{reader, supervisorLock.File()}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting the supervisor: %w", err), writer.Close())
	}
	return writer, cmd.Process.Release()
}
