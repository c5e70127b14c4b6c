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
var ErrBusy = errors.New("locked")

const lockPollInterval = 50 * time.Millisecond

// Lock is an exclusive flock(2) on a file. The kernel releases the lock when every process that shares it
// has closed the file or exited.
type Lock struct{ file *os.File }

// LockOperation takes the lock that `k1m up` and `k1m down` hold while they run, so that they do not run
// concurrently on one cluster.
func (d Dir) LockOperation() (*Lock, error) { return tryLock(d.lockFile("operation")) }

// LockSupervisor takes the lock that the supervisor holds while it runs. If LockSupervisor succeeds, no
// supervisor is running.
func (d Dir) LockSupervisor() (*Lock, error) { return tryLock(d.lockFile("supervisor")) }

// AwaitSupervisorExit waits until the supervisor has released its lock. After the timeout, it returns an
// error that wraps ErrBusy.
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
		time.Sleep(lockPollInterval)
	}
}

// AdoptLock returns the lock whose file this process inherited as file descriptor fd.
func AdoptLock(fd uintptr) *Lock {
	unix.CloseOnExec(int(fd))
	return &Lock{file: os.NewFile(fd, "inherited lock")}
}

// File returns the locked file. A child process that inherits the file shares the lock.
func (l *Lock) File() *os.File { return l.file }

// Release closes the file in this process. Other processes that share the lock keep it.
func (l *Lock) Release() error { return l.file.Close() }

// tryLock locks a file without waiting. If another process holds the lock, the error wraps ErrBusy and
// describes that process.
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

// lockOwner returns the description that the owner of a lock wrote into the file.
func lockOwner(path string) string {
	content, err := os.ReadFile(path)
	if owner := strings.TrimSpace(string(content)); err == nil && owner != "" {
		return owner
	}
	return "another process"
}
