// Package storeserver runs a store and load generators as processes, which are pinned to separate cores.
// Package store, the calibration of package controlplane, and test/bench use it.
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

	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

const (
	startTimeout = 3 * time.Minute
	pollInterval = 5 * time.Millisecond
)

// The stores, by the names of their programs.
const (
	MemEtcd = "mem_etcd"
	Etcd    = "etcd"
)

// Lab is the environment of the measurements: the programs, and the cores on which they run.
type Lab struct {
	// Bin is the directory of the programs.
	Bin string
	// ServerCores and ClientCores are core lists as taskset accepts them.
	ServerCores, ClientCores string
}

// SplitCores returns core lists that give half of the cores to the server and half to the clients. A
// single core is given to both.
func SplitCores(cores int) (server, clients string) {
	if cores == 1 {
		return "0", "0"
	}
	half := cores / 2
	coreList := func(first, last int) string {
		if first == last {
			return strconv.Itoa(first)
		}
		return fmt.Sprintf("%d-%d", first, last)
	}
	return coreList(0, half-1), coreList(half, cores-1)
}

// Program returns the path of a program.
func (l *Lab) Program(name string) string { return filepath.Join(l.Bin, name) }

// Server is a running store.
type Server struct {
	Store, URL string
	// Folder is the directory that contains the data directory.
	Folder  string
	process *exec.Cmd
	// Command is the command line, with placeholders for the values that differ between runs.
	Command string
	// Startup is the time from the start of the process until it was healthy.
	Startup time.Duration
}

// Fresh starts an empty store, with its data in a new directory below parent. The caller must call
// Discard, which stops the store and removes the directory.
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

// Start starts a store with its data below folder, and waits until the store is healthy.
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
	s.Command = s.withPlaceholders(append([]string{"taskset", "-c", l.ServerCores, store}, append(all, args...)...))
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if err := s.awaitHealthy(ctx); err != nil {
		s.Kill()
		return nil, err
	}
	s.Startup = time.Since(begun)
	return s, nil
}

// awaitHealthy waits until the store is healthy.
func (s *Server) awaitHealthy(ctx context.Context) error {
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(pollInterval) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if s.healthy() {
			return nil
		}
	}
	return fmt.Errorf("%s was not healthy after %s", s.Store, startTimeout)
}

// healthy reports whether the store is healthy. A store that does not listen yet is not healthy.
func (s *Server) healthy() bool {
	response, err := http.Get(s.URL + "/health")
	if err != nil {
		return false
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return err == nil && response.StatusCode == http.StatusOK && strings.Contains(string(body), `"true"`)
}

// Kill kills the store, as a crash would.
func (s *Server) Kill() {
	// The errors are ignored: the process may have exited, and Wait reports the signal as an error.
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
}

// Discard stops the store and removes its data.
func (s *Server) Discard() {
	s.Kill()
	if err := os.RemoveAll(s.Folder); err != nil {
		fmt.Fprintln(os.Stderr, "removing the data of the store:", err)
	}
}

// CPU returns the CPU time of the process in nanosecond resolution. It includes all threads, also those
// that have exited.
func (s *Server) CPU() (time.Duration, error) { return process.CPUTime(s.process.Process.Pid) }

// ThreadCPU returns the total CPU time of the running threads with this name.
func (s *Server) ThreadCPU(name string) (time.Duration, error) {
	threads, err := procfs.AllThreads(s.process.Process.Pid)
	if err != nil {
		return 0, fmt.Errorf("listing the threads of %s: %w", s.Store, err)
	}
	found, used := false, time.Duration(0)
	for _, thread := range threads {
		if comm, err := thread.Comm(); err != nil || comm != name {
			continue
		}
		stat, err := thread.Schedstat()
		if err != nil {
			return 0, fmt.Errorf("reading the CPU time of a thread of %s: %w", s.Store, err)
		}
		found, used = true, used+time.Duration(stat.RunningNanoseconds)
	}
	if !found {
		return 0, fmt.Errorf("%s has no thread %q", s.Store, name)
	}
	return used, nil
}

// Resident returns the resident memory of the process in bytes.
func (s *Server) Resident() (int64, error) {
	id, err := process.Of(s.process.Process.Pid)
	if err != nil {
		return 0, err
	}
	usage, err := id.Usage()
	return usage.Resident, err
}

// Settled waits until the resident memory is stable, but for at most 30 s, and returns it in bytes.
func (s *Server) Settled(ctx context.Context) (int64, error) {
	id, err := process.Of(s.process.Process.Pid)
	if err != nil {
		return 0, err
	}
	return id.SettledMemory(ctx)
}

// withPlaceholders returns a command line in which placeholders replace the values that differ between
// runs: the URL, the directory and the process ID of the server.
func (s *Server) withPlaceholders(args []string) string {
	line := strings.ReplaceAll(strings.Join(args, " "), s.URL, "$URL")
	line = strings.ReplaceAll(line, s.Folder, "$DIR")
	if s.process.Process != nil {
		line = strings.ReplaceAll(line, " --server-pid "+strconv.Itoa(s.process.Process.Pid), " --server-pid $PID")
	}
	return line
}

// freeAddress returns a loopback address with a port that no process uses.
func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}
