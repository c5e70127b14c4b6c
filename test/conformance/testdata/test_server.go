// Package testserver runs the server under test for Kubernetes' storage suites.
//
// It replaces the package of the same name in k8s.io/apiserver and has the same exported
// functions. That package embeds etcd; this one starts one process of the program $MEM_ETCD
// for each server, or $STORE_MEMBERS processes that are the members of one cluster. The suite's
// embed.Config is passed as etcd's environment variables, which mem_etcd and etcd both read, so
// this file runs the suites against either.
package testserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"

	storagetesting "k8s.io/apiserver/pkg/storage/testing"
)

const startTimeout = 60 * time.Second

// Ports are below Linux's range for outgoing connections. Otherwise a connection of the suite
// could take a port between its selection and the server's bind. Each port is used once per
// process.
const (
	firstPort = 20000
	portCount = 12000
)

var portsTaken atomic.Uint32

func freePort() (int, error) {
	start := uint32(os.Getpid()) * 97
	for range portCount {
		port := firstPort + int((start+portsTaken.Add(1))%portCount)
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return 0, err
		}
		return port, l.Close()
	}
	return 0, fmt.Errorf("no free port in %d-%d", firstPort, firstPort+portCount-1)
}

// NewTestConfig returns the configuration of a single server without fsync, on free ports
// and with a data directory that is deleted at the end of the test.
func NewTestConfig(t testing.TB) *embed.Config {
	t.Helper()
	freeURL := func() []url.URL {
		port, err := freePort()
		if err != nil {
			t.Fatal(err)
		}
		return []url.URL{{Scheme: "http", Host: net.JoinHostPort("localhost", strconv.Itoa(port))}}
	}

	cfg := embed.NewConfig()
	cfg.UnsafeNoFsync = true
	cfg.LogLevel = "error"
	// The lists must not share memory, because suites modify them in place.
	cfg.ListenClientUrls = freeURL()
	cfg.AdvertiseClientUrls = append([]url.URL(nil), cfg.ListenClientUrls...)
	cfg.ListenPeerUrls = freeURL()
	cfg.AdvertisePeerUrls = append([]url.URL(nil), cfg.ListenPeerUrls...)
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.Dir = filepath.Join(t.TempDir(), "data")
	return cfg
}

// RunEtcd starts a server with cfg, or with NewTestConfig(t) if cfg is nil, and returns a
// client of all its members. The server is stopped at the end of the test.
func RunEtcd(t testing.TB, cfg *embed.Config) *kubernetes.Client {
	t.Helper()
	if cfg == nil {
		cfg = NewTestConfig(t)
	}
	var endpoints []string
	all := members(t, cfg)
	exited := make([]<-chan struct{}, len(all))
	for i, member := range all {
		exited[i] = start(t, member, len(all))
		endpoints = append(endpoints, urlStrings(member.AdvertiseClientUrls)...)
	}

	tlsConfig, err := cfg.ClientTLSInfo.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	// The client is created after the server listens, because it waits a second after a refused connection.
	for i, member := range all {
		awaitSocket(t, member.ListenClientUrls[0], exited[i])
	}
	client, err := kubernetes.New(clientv3.Config{
		TLS:         tlsConfig,
		Endpoints:   endpoints,
		DialTimeout: 10 * time.Second,
		Logger:      zaptest.NewLogger(t, zaptest.Level(zapcore.ErrorLevel)).Named("etcd-client"),
	})
	if err != nil {
		t.Fatal(err)
	}
	awaitReady(t, client)

	// Suites count their requests with these recorders. They are installed after awaitReady, so that they do not
	// count its requests.
	recorder := storagetesting.NewKubernetesRecorder(client.Kubernetes)
	client.KV = storagetesting.NewKVRecorder(client.KV, recorder)
	client.Kubernetes = recorder
	return client
}

// members returns the configurations of all members: the given one, and $STORE_MEMBERS - 1 others that differ from it in
// their names, ports and directories.
func members(t testing.TB, cfg *embed.Config) []*embed.Config {
	t.Helper()
	count := 1
	if value := os.Getenv("STORE_MEMBERS"); value != "" {
		var err error
		if count, err = strconv.Atoi(value); err != nil || count < 1 {
			t.Fatalf("STORE_MEMBERS=%s: choose 1, 3 or 5", value)
		}
	}
	all := []*embed.Config{cfg}
	initial := []string{cfg.InitialCluster}
	for i := 1; i < count; i++ {
		other := *cfg
		other.Name = fmt.Sprintf("%s-%d", cfg.Name, i)
		other.ListenClientUrls = elsewhere(t, cfg.ListenClientUrls, i)
		other.AdvertiseClientUrls = append([]url.URL(nil), other.ListenClientUrls...)
		other.ListenPeerUrls = elsewhere(t, cfg.ListenPeerUrls, i)
		other.AdvertisePeerUrls = append([]url.URL(nil), other.ListenPeerUrls...)
		other.Dir = fmt.Sprintf("%s-%d", cfg.Dir, i)
		all, initial = append(all, &other), append(initial, other.InitialClusterFromName(other.Name))
	}
	for _, member := range all {
		member.InitialCluster = strings.Join(initial, ",")
	}
	return all
}

// elsewhere returns URLs like the given ones for the i-th member: with free ports, or with other paths of Unix sockets.
func elsewhere(t testing.TB, urls []url.URL, i int) []url.URL {
	t.Helper()
	var others []url.URL
	for _, u := range urls {
		if strings.HasPrefix(u.Scheme, "unix") {
			u.Host, u.Path = "", fmt.Sprintf("%s%s-%d", u.Host, u.Path, i)
		} else {
			port, err := freePort()
			if err != nil {
				t.Fatal(err)
			}
			u.Host = net.JoinHostPort(u.Hostname(), strconv.Itoa(port))
		}
		others = append(others, u)
	}
	return others
}

// start starts one of several members. The returned channel is closed when its process has exited.
func start(t testing.TB, cfg *embed.Config, members int) <-chan struct{} {
	t.Helper()
	path := os.Getenv("MEM_ETCD")
	if path == "" {
		t.Fatal("MEM_ETCD must name the server to test")
	}

	var output bytes.Buffer // must be read only after the process has exited
	cmd := exec.Command(path)
	cmd.Env = environment(cfg, members)
	cmd.Stdout = &output
	cmd.Stderr = &output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}

	var stopping atomic.Bool
	started := make(chan error)
	exited := make(chan struct{})
	go func() {
		// The kernel sends the parent-death signal when the thread that started the process ends, so this
		// thread must live as long as the server.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		err = cmd.Wait()
		if !stopping.Load() {
			// The cleanup below waits for this goroutine, so the test has not ended.
			t.Errorf("server exited during the test: %v", err)
		}
		close(exited)
	}()
	if err := <-started; err != nil {
		t.Fatalf("start server: %v", err)
	}

	t.Cleanup(func() {
		stopping.Store(true)
		// An error means that the process has exited already.
		_ = cmd.Process.Kill()
		<-exited
		if strings.Contains(output.String(), "panicked at") {
			t.Error("server panicked")
		}
		if t.Failed() && output.Len() > 0 {
			t.Logf("output of the server:\n%s", output.String())
		}
	})
	return exited
}

// environment returns the environment of one of several members. ETCD_* variables of this process
// are not passed on, except those that select mem_etcd's durability: ETCD_WAL_MODE of a server without
// peers, and ETCD_REPLICATION_LOG of a member.
func environment(cfg *embed.Config, members int) []string {
	durability := "WAL_MODE"
	if members > 1 {
		durability = "REPLICATION_LOG"
	}
	mode := os.Getenv("ETCD_" + durability)
	if mode == "" {
		mode = "buffered"
	}
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "ETCD_") {
			env = append(env, v)
		}
	}
	set := func(name string, value any) {
		env = append(env, fmt.Sprintf("ETCD_%s=%v", name, value))
	}
	urls := func(list []url.URL) string { return strings.Join(urlStrings(list), ",") }

	set("NAME", cfg.Name)
	set(durability, mode)
	if mode != "none" && mode != "memory" { // without a log, a data directory is not allowed
		set("DATA_DIR", cfg.Dir)
	}
	set("LOG_LEVEL", cfg.LogLevel)
	set("LISTEN_CLIENT_URLS", urls(cfg.ListenClientUrls))
	set("ADVERTISE_CLIENT_URLS", urls(cfg.AdvertiseClientUrls))
	set("MAX_REQUEST_BYTES", cfg.MaxRequestBytes)
	set("MAX_TXN_OPS", cfg.MaxTxnOps)
	set("MAX_CONCURRENT_STREAMS", cfg.MaxConcurrentStreams)
	if interval := cfg.WatchProgressNotifyInterval; interval != 0 { // 0 means that it is not set
		set("WATCH_PROGRESS_NOTIFY_INTERVAL", interval)
	}
	set("CLIENT_CERT_AUTH", cfg.ClientTLSInfo.ClientCertAuth)
	if tls := cfg.ClientTLSInfo; !tls.Empty() {
		set("CERT_FILE", tls.CertFile)
		set("KEY_FILE", tls.KeyFile)
	}
	if ca := cfg.ClientTLSInfo.TrustedCAFile; ca != "" {
		set("TRUSTED_CA_FILE", ca)
	}

	// Without peers, mem_etcd ignores the settings for peers. It always ignores those for fsync and the quota. A suite that
	// depends on the quota fails with mem_etcd.
	set("LISTEN_PEER_URLS", urls(cfg.ListenPeerUrls))
	set("INITIAL_ADVERTISE_PEER_URLS", urls(cfg.AdvertisePeerUrls))
	set("INITIAL_CLUSTER", cfg.InitialCluster)
	set("UNSAFE_NO_FSYNC", cfg.UnsafeNoFsync)
	set("QUOTA_BACKEND_BYTES", cfg.QuotaBackendBytes)
	return env
}

// awaitSocket waits until the server listens.
func awaitSocket(t testing.TB, u url.URL, exited <-chan struct{}) {
	t.Helper()
	network, address := "tcp", u.Host
	if strings.HasPrefix(u.Scheme, "unix") {
		network, address = "unix", u.Host+u.Path
	}
	deadline := time.Now().Add(startTimeout)
	for {
		conn, err := net.Dial(network, address)
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("server does not listen: %v", err)
		}
		select {
		case <-exited:
			t.Fatal("server exited before it listened")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// awaitReady waits until the server answers a linearizable read, because etcd listens before it has elected itself
// as the leader.
func awaitReady(t testing.TB, client *kubernetes.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		_, err := client.KV.Get(ctx, "ready")
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("server is not ready: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func urlStrings(list []url.URL) []string {
	var s []string
	for _, u := range list {
		s = append(s, u.String())
	}
	return s
}
