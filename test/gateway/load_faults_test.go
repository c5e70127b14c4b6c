package gateway

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

// recovery is the longest time after a fault until all clients succeed again. A machine without other work needs seconds.
const recovery = 3 * time.Minute

// shortFaults is the number of kinds of faults in the short form: the first ones of faults.
const shortFaults = 5

// fault is a disturbance of one API server, of the network in front of it, or of the gateway.
type fault struct {
	name string
	// inject disturbs, and heal ends the disturbance after duration.
	inject, heal func(*testing.T, *disturbed)
	duration     time.Duration
	// allowed are the failures that the documentation names for it.
	allowed func(failure) bool
	// relists: informers may list again.
	relists bool
}

// disturbed is a cluster whose gateway reaches the API servers through networks that can fail.
type disturbed struct {
	*cluster
	// test is the test of all faults. A restarted gateway ends with it, not with the test of one fault.
	test     *testing.T
	networks []*network
	// victim is the index of the API server of the current fault.
	victim int
	pid    int
}

func (d *disturbed) network() *network { return d.networks[d.victim] }

func (d *disturbed) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	must(t, syscall.Kill(d.pid, signal))
}

func never(failure) bool { return false }

// isInterrupted: the connection to the API server ended during a request.
func isInterrupted(f failure) bool { return isMaybeExecuted(f) || isBrokenAnswer(f) }

func faults() []fault {
	nothing := func(*testing.T, *disturbed) {}
	return []fault{
		{"network cut", func(_ *testing.T, d *disturbed) { d.network().cut() }, func(_ *testing.T, d *disturbed) { d.network().heal() }, 5 * time.Second, isInterrupted, false},
		{"network slow", func(_ *testing.T, d *disturbed) { d.network().slow(200 * time.Millisecond) }, func(_ *testing.T, d *disturbed) { d.network().heal() }, 8 * time.Second, never, false},
		{"network silent", func(_ *testing.T, d *disturbed) { d.network().mute() }, func(_ *testing.T, d *disturbed) { d.network().heal() }, 12 * time.Second, isTimeout, false},
		{"certificate rotated", func(t *testing.T, d *disturbed) { d.rotate(t) }, nothing, 8 * time.Second, never, false},
		{"gateway restarted", func(t *testing.T, d *disturbed) { d.restart(t, syscall.SIGTERM) }, nothing, time.Second, isDisconnected, false},
		{"API server suspended", func(t *testing.T, d *disturbed) { d.signal(t, syscall.SIGSTOP) }, func(t *testing.T, d *disturbed) { d.signal(t, syscall.SIGCONT) }, 12 * time.Second, isTimeout, false},
		{"API server killed", func(t *testing.T, d *disturbed) { d.signal(t, syscall.SIGKILL) }, nothing, 5 * time.Second, isInterrupted, false},
		{"gateway killed", func(t *testing.T, d *disturbed) { d.restart(t, syscall.SIGKILL) }, nothing, time.Second, isDisconnected, true},
	}
}

// rotate replaces the serving certificate of the API servers, which the gateway uses too, by one of the same CA.
func (d *disturbed) rotate(t *testing.T) {
	t.Helper()
	serving := template(pkix.Name{CommonName: "kube-apiserver"})
	serving.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	serving.IPAddresses, serving.DNSNames = []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost", "kubernetes"}
	name := strings.TrimSuffix(d.PKI("apiserver.crt"), ".crt")
	writePair(t, name, d.clusterCA(t).sign(t, serving))
}

// restart ends the gateway and starts it again at the same address.
func (d *disturbed) restart(t *testing.T, signal syscall.Signal) {
	t.Helper()
	must(t, d.process.Process.Signal(signal))
	if signal == syscall.SIGTERM {
		// It stops to listen at once, and lives on until its requests have ended.
		testcluster.Eventually(t, startTimeout, "the gateway has stopped to listen", func() bool {
			conn, err := net.Dial("tcp", d.gateway)
			if err == nil {
				_ = conn.Close()
			}
			return err != nil
		})
		d.metrics = testcluster.FreeAddress(t)
	} else {
		_ = d.process.Wait()
	}
	d.startGateway(d.test)
}

// testFaults disturbs a cluster under load. Clients must see no other failures than documented, informers must not list
// again, and all must go on soon.
func testFaults(t *testing.T, c *cluster) {
	all := faults()
	count, seed := shortFaults, uint64(1)
	if text := os.Getenv("GATEWAY_FAULTS"); text != "" {
		var err error
		count, err = strconv.Atoi(text)
		must(t, err)
		seed = rand.Uint64()
	}
	if text := os.Getenv("GATEWAY_FAULTS_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		must(t, err)
	}
	t.Logf("%d faults; to repeat this test: GATEWAY_FAULTS=%d GATEWAY_FAULTS_SEED=%d", count, count, seed)
	random := rand.New(rand.NewPCG(seed, 0))
	copied := *c
	d := &disturbed{cluster: &copied, test: t}
	d.Servers = nil
	for _, server := range c.Servers {
		network := newNetwork(t, server)
		d.networks, d.Servers = append(d.networks, network), append(d.Servers, network.address)
	}
	d.gateway, d.metrics = testcluster.FreeAddress(t), testcluster.FreeAddress(t)
	d.startGateway(t)
	started := time.Now()
	l := d.startLoad(t)
	testcluster.Eventually(t, startTimeout, "all clients succeed", func() bool { return l.allSucceeded(started) })
	for i := range count {
		f := all[i%len(all)]
		if i >= len(all) {
			f = all[random.IntN(len(all))]
		}
		d.victim = random.IntN(len(d.networks))
		t.Run(fmt.Sprintf("%d %s", i, f.name), func(t *testing.T) { d.disturb(t, l, f) })
	}
}

// disturb injects one fault and judges what clients see.
func (d *disturbed) disturb(t *testing.T, l *load, f fault) {
	d.pid = d.PIDAt(t, "https://"+d.networks[d.victim].server)
	if before, _, _ := l.take(); len(before) > 0 {
		t.Errorf("failures before the fault: %v", before)
	}
	// client-go lists again after a watch that ends within a second without an event.
	d.writeUntilSeen(t, d.client(t, d.gateway), l.readers, fmt.Sprintf("before-%d", time.Now().UnixNano()))
	lists := sumLists(l.readers)
	started := time.Now()
	f.inject(t, d)
	time.Sleep(f.duration)
	f.heal(t, d)
	healed := time.Now()
	testcluster.Eventually(t, recovery, "all clients succeed again", func() bool { return l.allSucceeded(healed) })
	recovered := time.Since(healed)
	// Afterwards both API servers serve again, and every informer sees new objects.
	testcluster.Eventually(t, faultTimeout, "both API servers are ready", func() bool {
		metrics := d.page("/metrics")
		return !slices.ContainsFunc(d.Servers, func(server string) bool {
			return !strings.Contains(metrics, fmt.Sprintf("kube_gateway_server_ready{server=%q} 1\n", server))
		})
	})
	d.writeUntilSeen(t, d.client(t, d.gateway), l.readers, fmt.Sprintf("fault-%d", started.UnixNano()))
	failures, requests, slowest := l.take()
	more := sumLists(l.readers) - lists
	t.Logf("%d requests, %d failures, slowest success %v, recovered %v after the end of the fault, %d lists", requests, len(failures), slowest, recovered, more)
	if more > 0 && !f.relists {
		t.Errorf("informers listed again %d times", more)
	}
	for _, failure := range failures {
		if !f.allowed(failure) {
			t.Errorf("undocumented failure: %v", failure)
		}
	}
}
