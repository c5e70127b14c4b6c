package clusterdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrBusy means that another process holds the lock.
var ErrBusy = errors.New("held")

const lockPoll = 50 * time.Millisecond

// Lock is an exclusive flock(2) on a file. The kernel releases it when every process that
// shares it has closed the file or died.
type Lock struct{ file *os.File }

// LockOperation prevents `k1m up` and `k1m down` from running concurrently on a cluster.
func (d Dir) LockOperation() (*Lock, error) { return tryLock(d.lockFile("operation")) }

// LockSupervisor takes the lock that the supervisor holds while it runs. If a caller obtains the lock,
// no supervisor is running.
func (d Dir) LockSupervisor() (*Lock, error) { return tryLock(d.lockFile("supervisor")) }

// AwaitSupervisorExit waits until the supervisor has released its lock. It returns ErrBusy
// after the timeout.
func (d Dir) AwaitSupervisorExit(timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		lock, err := d.LockSupervisor()
		if err == nil {
			return lock.Release()
		}
		if !errors.Is(err, ErrBusy) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(lockPoll)
	}
}

// AdoptLock returns the lock whose open file this process inherited as file descriptor fd.
func AdoptLock(fd uintptr) *Lock {
	unix.CloseOnExec(int(fd))
	return &Lock{file: os.NewFile(fd, "inherited lock")}
}

// File is the locked file. A child process that inherits it shares the lock.
func (l *Lock) File() *os.File { return l.file }

// Release drops this process's share of the lock.
func (l *Lock) Release() error { return l.file.Close() }

func tryLock(path string) (*Lock, error) {
	if err := os.MkdirAll(filepath.Dir(path), privateDirMode); err != nil {
		return nil, fmt.Errorf("creating %s: %w", filepath.Dir(path), err)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening lock: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w by %s", ErrBusy, lockOwner(path))
		}
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	if err := file.Truncate(0); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if _, err := fmt.Fprintf(file, "process %d", os.Getpid()); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &Lock{file: file}, nil
}

// lockOwner describes the process that holds a lock, as it wrote itself into the file.
func lockOwner(path string) string {
	content, err := os.ReadFile(path)
	if owner := strings.TrimSpace(string(content)); err == nil && owner != "" {
		return owner
	}
	return "another process"
}
