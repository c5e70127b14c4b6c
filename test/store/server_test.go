// Package store tests mem_etcd and etcd-proxy as black boxes: it starts their processes, sends
// requests, and compares the responses of mem_etcd with etcd's.
package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// startTimeout is the time limit for the start of a server, and for most requests. It is long because
// the machine may be busy with other tests.
const startTimeout = 3 * time.Minute

// binary returns the path of a program in bin/, or in the directory K1M_BIN.
func binary(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("K1M_BIN")
	if dir == "" {
		dir = filepath.Join("..", "..", "bin")
	}
	path, err := filepath.Abs(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run `make build` first", err)
	}
	return path
}

// ports is the number of ports that freePort has tried. The ports are below the kernel's ephemeral
// range, so no outgoing connection can take the port of a server while it restarts.
var ports atomic.Int32

// freePort returns a loopback port that has no listener and that no other test of this process gets.
func freePort(t testing.TB) int {
	t.Helper()
	const first, count = 10_000, 10_000 // k1m's clusters use ports from 20,000 on
	start := os.Getpid() * 97
	for range count {
		port := first + (start+int(ports.Add(1)))%count
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			listener.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

// server is a process of mem_etcd, etcd or etcd-proxy.
type server struct {
	t      testing.TB
	cmd    *exec.Cmd
	log    *bytes.Buffer
	exited chan error
	// address is the host and port of the client listener.
	address string
	args    []string
}

// startMemEtcd starts mem_etcd on a free port and waits until it is ready. With --wal-mode none it has
// no data directory, otherwise a new one.
func startMemEtcd(t testing.TB, flags ...string) *server {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	args := append([]string{"--listen-client-urls", "http://" + address}, flags...)
	if !strings.Contains(strings.Join(flags, " "), "--wal-mode none") {
		args = append([]string{"--data-dir", filepath.Join(t.TempDir(), "data")}, args...)
	}
	s := &server{t: t, address: address, args: args}
	s.start(binary(t, "mem_etcd"))
	return s
}

// startEtcd starts etcd on a free port with a new data directory, and waits until it is ready.
func startEtcd(t testing.TB, flags ...string) *server {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	peer := fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	s := &server{t: t, address: address, args: []string{
		"--data-dir", filepath.Join(t.TempDir(), "data"),
		"--listen-client-urls", "http://" + address, "--advertise-client-urls", "http://" + address,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--initial-cluster", "default=" + peer, "--log-level", "error",
	}}
	s.args = append(s.args, flags...)
	s.start(binary(t, "etcd"))
	return s
}

// start starts the program at path and waits until it is ready.
func (s *server) start(path string) {
	s.t.Helper()
	s.startWithoutWaiting(path)
	s.waitReady()
}

// startWithoutWaiting starts the program at path, and does not wait until it is ready.
func (s *server) startWithoutWaiting(path string) {
	s.t.Helper()
	s.log = &bytes.Buffer{}
	s.cmd = exec.Command(path, s.args...)
	s.cmd.Stderr = s.log
	s.exited = make(chan error, 1)
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func(cmd *exec.Cmd, exited chan error) { exited <- cmd.Wait() }(s.cmd, s.exited)
	s.t.Cleanup(s.kill)
}

func (s *server) waitReady() {
	s.t.Helper()
	deadline := time.Now().Add(startTimeout)
	for time.Now().Before(deadline) {
		select {
		case err := <-s.exited:
			s.exited <- err
			s.t.Fatalf("the server exited: %v\n%s", err, s.log)
		default:
		}
		response, err := http.Get("http://" + s.address + "/health")
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	s.t.Fatalf("the server was not ready after %v", startTimeout)
}

// kill sends SIGKILL, which simulates a crash, and waits for the process to exit.
func (s *server) kill() { s.signalAndWait(syscall.SIGKILL) }

// stop sends SIGTERM and waits for the process to exit.
func (s *server) stop() error { return s.signalAndWait(syscall.SIGTERM) }

func (s *server) signalAndWait(signal syscall.Signal) error {
	// An error means that the process has already exited.
	_ = s.cmd.Process.Signal(signal)
	err := <-s.exited
	s.exited <- err
	return err
}

// restart starts the same program with the same arguments and waits until it is ready.
func (s *server) restart() {
	s.t.Helper()
	s.start(s.cmd.Path)
}

// api is a gRPC connection to a server with the generated clients of etcd's services, without etcd's
// client library.
type api struct {
	conn        *grpc.ClientConn
	kv          pb.KVClient
	watch       pb.WatchClient
	lease       pb.LeaseClient
	maintenance pb.MaintenanceClient
	cluster     pb.ClusterClient
}

// dial opens a gRPC connection to the server.
func (s *server) dial() *api {
	s.t.Helper()
	conn, err := grpc.NewClient(s.address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	return newAPI(conn)
}

func newAPI(conn *grpc.ClientConn) *api {
	return &api{
		conn:        conn,
		kv:          pb.NewKVClient(conn),
		watch:       pb.NewWatchClient(conn),
		lease:       pb.NewLeaseClient(conn),
		maintenance: pb.NewMaintenanceClient(conn),
		cluster:     pb.NewClusterClient(conn),
	}
}

// fromJSON decodes the JSON output of a program.
func fromJSON(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("the output is not the expected JSON: %v: %s", err, text)
	}
}
