package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

const (
	startTimeout = 3 * time.Minute
	pollInterval = 5 * time.Millisecond

	// Memory is settled when it has not changed by a thousandth for so long.
	settleInterval = time.Second
	settleTimeout  = 30 * time.Second
)

// server is a store that runs on a core of its own.
type server struct {
	store, url string
	// folder has the data in it.
	folder  string
	process *exec.Cmd
	// command as it is shown, with placeholders.
	command string
	// startup is the time until it was healthy.
	startup time.Duration
}

// fresh starts an empty store whose data lies in a new folder below parent;
// discard takes both away.
func (l *lab) fresh(ctx context.Context, store, parent string, args ...string) (*server, error) {
	folder, err := os.MkdirTemp(parent, "bench-")
	if err != nil {
		return nil, err
	}
	s, err := l.start(ctx, store, folder, args...)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	return s, nil
}

// start runs a store on what lies in folder, and waits until it is healthy.
func (l *lab) start(ctx context.Context, store, folder string, args ...string) (*server, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	url := "http://" + address
	all := []string{"--data-dir", filepath.Join(folder, "data"), "--listen-client-urls", url, "--advertise-client-urls", url, "--log-level", "error"}
	if store == etcd {
		peer, err := freeAddress()
		if err != nil {
			return nil, err
		}
		peer = "http://" + peer
		all = append(all, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--initial-cluster", "default="+peer, "--quota-backend-bytes", "8589934592")
	}
	cmd := exec.CommandContext(ctx, "taskset", append([]string{"-c", serverCore, l.program(store)}, append(all, args...)...)...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s := &server{store: store, url: url, folder: folder, process: cmd}
	s.command = s.shown(append([]string{"taskset", "-c", serverCore, store}, append(all, args...)...))
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if err := s.untilHealthy(ctx); err != nil {
		s.kill()
		return nil, err
	}
	s.startup = time.Since(begun)
	return s, nil
}

func (s *server) untilHealthy(ctx context.Context) error {
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(pollInterval) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if s.healthy() {
			return nil
		}
	}
	return fmt.Errorf("%s did not get healthy within %s", s.store, startTimeout)
}

// healthy says whether it answers that it is; errors are those of a server that
// does not listen yet.
func (s *server) healthy() bool {
	response, err := http.Get(s.url + "/health")
	if err != nil {
		return false
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return err == nil && response.StatusCode == http.StatusOK && strings.Contains(string(body), `"true"`)
}

// kill ends it as a crash would.
func (s *server) kill() {
	// That it was killed is no news.
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
}

// discard ends it and removes its data.
func (s *server) discard() {
	s.kill()
	if err := os.RemoveAll(s.folder); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
}

// cpu is what the operating system counted for the process until now: in
// nanoseconds, over all threads, those that have ended included.
func (s *server) cpu() (time.Duration, error) {
	// The kernel's MAKE_PROCESS_CPUCLOCK: the process ID inverted, and a kind of
	// clock that counts by the scheduler and not by ticks.
	const scheduler = 2
	clock := ^s.process.Process.Pid<<3 | scheduler
	var used unix.Timespec
	if err := unix.ClockGettime(int32(clock), &used); err != nil {
		return 0, fmt.Errorf("CPU time of %s: %w", s.store, err)
	}
	return time.Duration(used.Nano()), nil
}

// resident memory in bytes.
func (s *server) resident() (int64, error) {
	process, err := procfs.NewProc(s.process.Process.Pid)
	if err != nil {
		return 0, err
	}
	stat, err := process.Stat()
	return int64(stat.ResidentMemory()), err
}

// settled is the resident memory when it has stopped to change.
func (s *server) settled(ctx context.Context) (int64, error) {
	before, err := s.resident()
	for deadline := time.Now().Add(settleTimeout); err == nil && time.Now().Before(deadline); {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(settleInterval):
		}
		var now int64
		now, err = s.resident()
		if change := now - before; max(change, -change) <= now/1000 {
			return now, err
		}
		before = now
	}
	return before, err
}

// shown is a command line with placeholders for what differs from run to run.
func (s *server) shown(args []string) string {
	line := strings.ReplaceAll(strings.Join(args, " "), s.url, "$URL")
	line = strings.ReplaceAll(line, s.folder, "$DIR")
	if s.process.Process != nil {
		line = strings.ReplaceAll(line, " --server-pid "+strconv.Itoa(s.process.Process.Pid), " --server-pid $PID")
	}
	return line
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}
