package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

const (
	serverCore, clientCore = "0", "1"
	startTimeout           = 30 * time.Second
)

// measure runs one workload on a fresh store.
func measure(bin, store string, w workload) (measurement, error) {
	// Memory-backed, and gone with the machine: as fast as a disk can be.
	dir, err := os.MkdirTemp("/dev/shm", "bench-")
	if err != nil {
		return measurement{}, err
	}
	defer os.RemoveAll(dir)
	server, address, err := start(bin, store, dir)
	if err != nil {
		return measurement{}, err
	}
	defer stop(server)

	report, err := load(bin, address, server.Process.Pid, w)
	if err != nil {
		return measurement{}, err
	}
	resident, err := residentBytes(server.Process.Pid)
	if err != nil {
		return measurement{}, err
	}
	m := measurement{
		Store: store, Workload: w.Name, Ops: report.Ops, Errors: report.Errors,
		OpsPerSecond: report.OpsPerSecond, P99Micros: report.LatencyMicros.P99,
		ServerCPUMicrosPerOp: report.ServerCPUMicrosPerOp,
		ClientCPUMicrosPerOp: report.ClientCPUMicrosPerOp,
		ServerResidentBytes:  int64(resident), EventsDelivered: report.Watch.Events,
	}
	if w.PerEvent {
		m.ServerCPUMicrosPerOp *= float64(report.Ops) / float64(report.Watch.Events)
	}
	if report.Workload == "range" {
		m.SecondsPerRead = report.Seconds / float64(report.Ops)
	}
	return m, nil
}

// start runs a store on a free port and waits until it is healthy.
func start(bin, store, dir string) (*exec.Cmd, string, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, "", err
	}
	url := "http://" + address
	args := []string{"--data-dir", filepath.Join(dir, "data"), "--listen-client-urls", url, "--advertise-client-urls", url, "--log-level", "error"}
	if store == "etcd" {
		peer, err := freeAddress()
		if err != nil {
			return nil, "", err
		}
		peer = "http://" + peer
		args = append(args, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--initial-cluster", "default="+peer, "--quota-backend-bytes", "8589934592")
	}
	cmd := pinned(serverCore, filepath.Join(bin, store), args...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		response, err := http.Get(url + "/health")
		if err != nil {
			continue
		}
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			return cmd, url, nil
		}
	}
	stop(cmd)
	return nil, "", errors.New("the server did not get healthy")
}

func stop(cmd *exec.Cmd) {
	// Whatever it says now does not matter any more.
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// pinned is a command that may use one core only; taskset turns into it, so the
// process ID stays.
func pinned(core, path string, args ...string) *exec.Cmd {
	return exec.Command("taskset", append([]string{"-c", core, path}, args...)...)
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}

// benchReport is the part of etcd-bench's JSON that is used here.
type benchReport struct {
	Workload      string  `json:"workload"`
	Ops           int64   `json:"ops"`
	Errors        int64   `json:"errors"`
	Seconds       float64 `json:"seconds"`
	OpsPerSecond  float64 `json:"opsPerSecond"`
	LatencyMicros struct {
		P99 int64 `json:"p99"`
	} `json:"latencyMicros"`
	ClientCPUMicrosPerOp float64 `json:"clientCpuMicrosPerOp"`
	ServerCPUMicrosPerOp float64 `json:"serverCpuMicrosPerOp"`
	Watch                struct {
		Events int64 `json:"events"`
	} `json:"watch"`
}

func load(bin, url string, pid int, w workload) (benchReport, error) {
	args := append(w.Args, "--endpoints", url, "--output", "json", "--server-pid", strconv.Itoa(pid))
	cmd := pinned(clientCore, filepath.Join(bin, "etcd-bench"), args...)
	var report benchReport
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, os.Stderr
	if err := cmd.Run(); err != nil {
		return report, fmt.Errorf("etcd-bench: %w: %s", err, output.String())
	}
	return report, json.Unmarshal(output.Bytes(), &report)
}

func residentBytes(pid int) (int, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	stat, err := process.Stat()
	if err != nil {
		return 0, err
	}
	return stat.ResidentMemory(), nil
}
