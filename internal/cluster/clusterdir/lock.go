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

// ErrBusy says that another process holds a lock.
var ErrBusy = errors.New("held")

const lockPoll = 50 * time.Millisecond

// Lock is an flock: the kernel gives it back however its holders die.
type Lock struct{ file *os.File }

// LockOperation keeps a second `up` or `down` off the cluster.
func (d Dir) LockOperation() (*Lock, error) { return tryLock(d.lockFile("operation")) }

// LockSupervisor is held by the supervisor for as long as it lives, so that
// whoever gets it knows that there is none.
func (d Dir) LockSupervisor() (*Lock, error) { return tryLock(d.lockFile("supervisor")) }

// AwaitSupervisorExit waits until no supervisor holds its lock.
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

// AdoptLock takes over a lock whose open file was inherited from the parent.
func AdoptLock(fd uintptr) *Lock {
	unix.CloseOnExec(int(fd))
	return &Lock{file: os.NewFile(fd, "inherited lock")}
}

// File is handed to a child process that is to share the lock.
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
			return nil, fmt.Errorf("%w by %s", ErrBusy, holder(path))
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

func holder(path string) string {
	content, err := os.ReadFile(path)
	if who := strings.TrimSpace(string(content)); err == nil && who != "" {
		return who
	}
	return "another process"
}
