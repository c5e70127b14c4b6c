// Package storeserver runs a store and loads it, each on cores of its own.
package storeserver

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
	"slices"
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

// The stores, by the names of their programs.
const (
	MemEtcd = "mem_etcd"
	Etcd    = "etcd"
)

// Lab is where stores are measured.
type Lab struct {
	// Bin has the programs in it.
	Bin string
	// ServerCores and ClientCores as taskset reads them.
	ServerCores, ClientCores string
}

// SplitCores gives server and clients half of the cores each.
func SplitCores(cores int) (server, clients string) {
	if cores == 1 {
		return "0", "0"
	}
	half := cores / 2
	span := func(first, last int) string {
		if first == last {
			return strconv.Itoa(first)
		}
		return fmt.Sprintf("%d-%d", first, last)
	}
	return span(0, half-1), span(half, cores-1)
}

// Program is the path of one.
func (l *Lab) Program(name string) string { return filepath.Join(l.Bin, name) }

// Server is a store that runs on a core of its own.
type Server struct {
	Store, URL string
	// Folder has the data in it.
	Folder  string
	process *exec.Cmd
	// Command as it is shown, with placeholders.
	Command string
	// Startup is the time until it was healthy.
	Startup time.Duration
}

// Fresh starts an empty store whose data lies in a new folder below parent;
// Discard takes both away.
func (l *Lab) Fresh(ctx context.Context, store, parent string, args ...string) (*Server, error) {
	folder, err := os.MkdirTemp(parent, "bench-")
	if err != nil {
		return nil, err
	}
	s, err := l.Start(ctx, store, folder, args...)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	return s, nil
}

// Start runs a store on what lies in folder, and waits until it is healthy.
func (l *Lab) Start(ctx context.Context, store, folder string, args ...string) (*Server, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	url := "http://" + address
	all := []string{"--listen-client-urls", url, "--advertise-client-urls", url, "--log-level", "error"}
	if !slices.Contains(args, "none") {
		all = append(all, "--data-dir", filepath.Join(folder, "data"))
	}
	if store == Etcd {
		peer, err := freeAddress()
		if err != nil {
			return nil, err
		}
		peer = "http://" + peer
		all = append(all, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--initial-cluster", "default="+peer, "--quota-backend-bytes", "8589934592")
	}
	cmd := exec.CommandContext(ctx, "taskset", append([]string{"-c", l.ServerCores, l.Program(store)}, append(all, args...)...)...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s := &Server{Store: store, URL: url, Folder: folder, process: cmd}
	s.Command = s.shown(append([]string{"taskset", "-c", l.ServerCores, store}, append(all, args...)...))
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if err := s.untilHealthy(ctx); err != nil {
		s.Kill()
		return nil, err
	}
	s.Startup = time.Since(begun)
	return s, nil
}

func (s *Server) untilHealthy(ctx context.Context) error {
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(pollInterval) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if s.healthy() {
			return nil
		}
	}
	return fmt.Errorf("%s did not get healthy within %s", s.Store, startTimeout)
}

// healthy says whether it answers that it is; errors are those of a server that
// does not listen yet.
func (s *Server) healthy() bool {
	response, err := http.Get(s.URL + "/health")
	if err != nil {
		return false
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return err == nil && response.StatusCode == http.StatusOK && strings.Contains(string(body), `"true"`)
}

// Kill ends it as a crash would.
func (s *Server) Kill() {
	// That it was killed is no news.
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
}

// Discard ends it and removes its data.
func (s *Server) Discard() {
	s.Kill()
	if err := os.RemoveAll(s.Folder); err != nil {
		fmt.Fprintln(os.Stderr, "removing data:", err)
	}
}

// CPU is what the operating system counted for the process until now: in
// nanoseconds, over all threads, those that have ended included.
func (s *Server) CPU() (time.Duration, error) {
	// The kernel's MAKE_PROCESS_CPUCLOCK: the process ID inverted, and a kind of
	// clock that counts by the scheduler and not by ticks.
	const scheduler = 2
	clock := ^s.process.Process.Pid<<3 | scheduler
	var used unix.Timespec
	if err := unix.ClockGettime(int32(clock), &used); err != nil {
		return 0, fmt.Errorf("CPU time of %s: %w", s.Store, err)
	}
	return time.Duration(used.Nano()), nil
}

// ThreadCPU is what the threads of that name have taken until now.
func (s *Server) ThreadCPU(name string) (time.Duration, error) {
	threads, err := procfs.AllThreads(s.process.Process.Pid)
	if err != nil {
		return 0, fmt.Errorf("threads of %s: %w", s.Store, err)
	}
	found, taken := false, time.Duration(0)
	for _, thread := range threads {
		if called, err := thread.Comm(); err != nil || called != name {
			continue
		}
		stat, err := thread.Schedstat()
		if err != nil {
			return 0, fmt.Errorf("CPU time of %s: %w", s.Store, err)
		}
		found, taken = true, taken+time.Duration(stat.RunningNanoseconds)
	}
	if !found {
		return 0, fmt.Errorf("%s has no thread %q", s.Store, name)
	}
	return taken, nil
}

// Resident memory in bytes.
func (s *Server) Resident() (int64, error) {
	process, err := procfs.NewProc(s.process.Process.Pid)
	if err != nil {
		return 0, err
	}
	stat, err := process.Stat()
	return int64(stat.ResidentMemory()), err
}

// Settled is the resident memory when it has stopped to change.
func (s *Server) Settled(ctx context.Context) (int64, error) {
	before, err := s.Resident()
	for deadline := time.Now().Add(settleTimeout); err == nil && time.Now().Before(deadline); {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(settleInterval):
		}
		var now int64
		now, err = s.Resident()
		if change := now - before; max(change, -change) <= now/1000 {
			return now, err
		}
		before = now
	}
	return before, err
}

// shown is a command line with placeholders for what differs from run to run.
func (s *Server) shown(args []string) string {
	line := strings.ReplaceAll(strings.Join(args, " "), s.URL, "$URL")
	line = strings.ReplaceAll(line, s.Folder, "$DIR")
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
