package gateway

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/procfs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

const (
	// firstKubelets are kubelets whose memory is not measured: it includes what a server allocates once.
	firstKubelets = 20
	// changesPerSecond is the rate at which a Service is changed. Each change is delivered before the next one, because
	// events that wait for a client together cost less.
	changesPerSecond = 20.0
	changeWorkers    = 4
	// memoryIdle is the time after which connections and allocators have freed what they do not need.
	memoryIdle = 15 * time.Second
	// mostKubelets bounds the kubelets of one gateway. It has a connection to the API server for each, and Linux has
	// about 28,000 local ports.
	mostKubelets = 25_000
	// serverBytes is the memory of kube-apiserver for a kubelet, about: six watches with 85 KiB each, and as much
	// garbage. They may take serverShare of the memory that is available.
	serverBytes = 2 * 6 * 85 * kibibyte
	serverShare = 0.5

	// Metrics of Go processes: the live heap after the last garbage collection, and the stacks of goroutines.
	liveHeapMetric = "go_gc_heap_live_bytes"
	stacksMetric   = "go_memory_classes_heap_stacks_bytes"
)

// kubeletCost is what the watches of kubelets cost.
type kubeletCost struct {
	kubelets, events int
	// memory is that of a kubelet in bytes.
	memory kubeletMemory
	// gatewayMicros and serverMicros are the CPU time of the gateway and the API server for an event.
	gatewayMicros, serverMicros float64
}

// kubeletMemory is memory in bytes: resident memory of the gateway, memory of the API server that is in use after a
// garbage collection, and resident memory of the API server.
type kubeletMemory struct{ gateway, live, resident float64 }

// front returns the memory of what the kubelets connect to.
func (m kubeletMemory) front(name string) float64 {
	if name == direct {
		return m.live
	}
	return m.gateway
}

// each returns the memory for each of the kubelets that were started since before.
func (m kubeletMemory) each(before kubeletMemory, kubelets int) kubeletMemory {
	count := float64(max(kubelets, 1))
	return kubeletMemory{(m.gateway - before.gateway) / count, (m.live - before.live) / count, (m.resident - before.resident) / count}
}

// watchingKubelets measures the memory of the watches of kubelets, and the CPU time of an event.
func (p *nodePathLab) watchingKubelets(ctx context.Context) error {
	table := p.table(&p.run.tables.watches, fmt.Sprintf("Kubelets with a connection and %d watches each", len(kubeletResources)), "front", "kubelets",
		"kube-gateway for a kubelet, KiB", "kube-apiserver for a kubelet, in use, KiB", "resident, KiB",
		"events", "kube-gateway for an event, µs", "kube-apiserver for an event, µs")
	cost, err := p.measureKubelets(ctx)
	if err != nil {
		return err
	}
	p.run.kubelets[p.front.name] = cost
	m, gateway, micros := cost.memory, any(""), any("")
	if p.served() {
		gateway, micros = m.gateway/kibibyte, cost.gatewayMicros
	}
	table.Add(p.front.name, cost.kubelets, gateway, m.live/kibibyte, m.resident/kibibyte, cost.events, micros, cost.serverMicros)
	return nil
}

// measureKubelets starts kubelets. Their memory is the difference to that before, and the CPU time of an event that of
// the same changes before.
func (p *nodePathLab) measureKubelets(ctx context.Context) (cost kubeletCost, err error) {
	service, err := p.newService(ctx, "watched")
	if err != nil {
		return cost, err
	}
	first, err := p.startKubeletsServed(ctx, kubeletsOptions{prefix: "first", count: firstKubelets, register: true})
	if err != nil {
		return cost, err
	}
	defer first.stop()
	before, err := p.kubeletMemory(ctx)
	if err != nil {
		return cost, err
	}
	without, err := p.changeService(ctx, service, first)
	if err != nil {
		return cost, err
	}
	cost.kubelets = p.bounded("watches", p.run.own.Kubelets.N)
	watching, err := p.startKubeletsServed(ctx, kubeletsOptions{prefix: "watching", count: cost.kubelets, register: true})
	if err != nil {
		return cost, err
	}
	defer watching.stop()
	after, err := p.kubeletMemory(ctx)
	if err != nil {
		return cost, err
	}
	with, err := p.changeService(ctx, service, watching)
	cost.memory, cost.events = after.each(before, cost.kubelets), with.events
	cost.gatewayMicros, cost.serverMicros = with.microsAfter(without)
	if err == nil && p.served() && (cost.memory.gateway <= 0 || cost.gatewayMicros <= 0) {
		// A figure that is too small to be measured would meet its limit.
		err = fmt.Errorf("%d kubelets are too few to measure the memory and CPU time of kube-gateway; choose more --kubelets", cost.kubelets)
	}
	return cost, err
}

// bounded returns how many of so many kubelets the machine can have. A note says if there are fewer.
func (p *nodePathLab) bounded(row string, wanted int) int {
	most, reason := mostKubelets, "local ports"
	if p.run.withFiles < most {
		most, reason = p.run.withFiles, fmt.Sprintf("limit on open files (ulimit -Hn %d would allow them)", filesForKubelets(wanted))
	}
	if proc, err := procfs.NewDefaultFS(); err == nil && !p.served() {
		if memory, err := proc.Meminfo(); err == nil && memory.MemAvailableBytes != nil {
			if fitting := kubeletsWithin(*memory.MemAvailableBytes); fitting < most {
				most, reason = fitting, fmt.Sprintf("%d MiB of memory that are available", *memory.MemAvailableBytes/mebibyte)
			}
		}
	}
	if wanted > most {
		p.Result.Note("Row %s, %s: %d kubelets instead of %d, because of the %s.", row, p.front.name, most, wanted, reason)
	}
	return min(wanted, most)
}

// kubeletsWithin returns how many kubelets kube-apiserver can have with so many bytes of available memory.
func kubeletsWithin(available uint64) int {
	return max(int(serverShare*float64(available)/serverBytes), 1)
}

// startKubeletsServed starts kubelets. Through a gateway all their watches must be served.
func (p *nodePathLab) startKubeletsServed(ctx context.Context, o kubeletsOptions) (*kubelets, error) {
	if err := p.awaitCaches(ctx); err != nil {
		return nil, err
	}
	before, err := p.settledWatches(ctx)
	if err != nil {
		return nil, err
	}
	g, err := p.startKubelets(ctx, p.front, o)
	if err != nil {
		return nil, err
	}
	if err := p.mustServeWatches(ctx, before+o.count*len(kubeletResources)); err != nil {
		g.stop()
		return nil, err
	}
	return g, nil
}

// servedWatches returns the number of open watches that the gateway serves; 0 without a gateway.
func (p *nodePathLab) servedWatches() int {
	return p.front.sum("kube_gateway_node_path_watches", "")
}

// settledWatches returns the number of open watches when the gateway has noticed that those of an earlier row were closed.
func (p *nodePathLab) settledWatches(ctx context.Context) (int, error) {
	for before := -1; ; {
		served := p.servedWatches()
		if served == before || !p.served() {
			return served, nil
		}
		before = served
		if err := experiment.Sleep(ctx, time.Second); err != nil {
			return 0, err
		}
	}
}

// awaitCaches waits until the gateway serves watches.
func (p *nodePathLab) awaitCaches(ctx context.Context) error {
	if !p.served() {
		return nil
	}
	for deadline := time.Now().Add(permitTimeout); ; {
		caches, _ := p.front.metric("kube_gateway_node_path_cache_serving")
		serving := 0
		for _, value := range caches {
			serving += int(value)
		}
		if len(caches) > 0 && serving == len(caches) && p.front.sum("kube_gateway_node_path_reads_permitted", "") == 1 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("kube-gateway does not serve watches after %s: %d of %d caches serve, refused by %s; its log has the reasons (docs/kube-gateway.md)",
				permitTimeout, serving, len(caches), p.refusals())
		}
		if err := experiment.Sleep(ctx, pollInterval); err != nil {
			return err
		}
	}
}

// mustServeWatches waits until the gateway serves so many watches. It takes over those that an API server has begun.
func (p *nodePathLab) mustServeWatches(ctx context.Context, wanted int) error {
	if !p.served() {
		return nil
	}
	for deadline := time.Now().Add(permitTimeout); ; {
		served := p.servedWatches()
		if served >= wanted {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("kube-gateway serves %d of %d watches of kubelets; forwarded: %s", served, wanted, p.forwards("kube_gateway_node_path_reads_total"))
		}
		if err := experiment.Sleep(ctx, pollInterval); err != nil {
			return err
		}
	}
}

// kubeletMemory returns the memory of the servers as soon as it is stable.
func (p *nodePathLab) kubeletMemory(ctx context.Context) (m kubeletMemory, err error) {
	task := p.Display.Task(p.front.name+": memory becomes stable", 0)
	defer func() {
		if err != nil {
			task.Interrupt()
			return
		}
		task.Done(fmt.Sprintf("%.0f MiB", m.front(p.front.name)/mebibyte))
	}()
	if err := errors.Join(p.AwaitQuiet(ctx), experiment.Sleep(ctx, memoryIdle)); err != nil {
		return m, err
	}
	if p.served() {
		resident, err := p.front.id.SettledMemory(ctx)
		if err != nil {
			return m, err
		}
		m.gateway = float64(resident)
	}
	if err := p.Sampler.CollectGarbage(ctx, component.RoleAPIServer); err != nil {
		return m, err
	}
	totals, err := p.Sampler.Totals(ctx, component.RoleAPIServer, map[string]string{liveHeapMetric: "", stacksMetric: ""})
	if err != nil {
		return m, err
	}
	m.live = totals[liveHeapMetric][""] + totals[stacksMetric][""]
	m.resident = float64(p.Sampler.Usage()[component.RoleAPIServer].Resident)
	if totals[liveHeapMetric][""] == 0 {
		return m, fmt.Errorf("the metrics of kube-apiserver have no %s", liveHeapMetric)
	}
	return m, nil
}

// watchedService is a Service that is changed, by a client that does not use the front.
type watchedService struct {
	name   string
	client kubernetes.Interface
}

// newService creates a Service, which all kubelets watch.
func (p *nodePathLab) newService(ctx context.Context, name string) (watchedService, error) {
	client, err := kubernetes.NewForConfig(p.Rest)
	if err != nil {
		return watchedService{}, err
	}
	object := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}}}
	if _, err = client.CoreV1().Services(namespace).Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return watchedService{}, fmt.Errorf("creating the Service %s: %w", name, err)
	}
	return watchedService{name, client}, nil
}

// change changes the Service. The value always differs, because an API server does not store a patch that changes nothing.
func (s watchedService) change(ctx context.Context) error {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"k1m/update":"%d"}}}`, time.Now().UnixNano())
	_, err := s.client.CoreV1().Services(namespace).Patch(ctx, s.name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// delivered is what was measured while a Service was changed.
type delivered struct {
	events          int
	gateway, server time.Duration // CPU time
}

// microsAfter returns the CPU time for an event in microseconds, without that of the same changes before.
func (d delivered) microsAfter(without delivered) (gateway, server float64) {
	each := func(used time.Duration) float64 {
		return math.Max(float64(used.Nanoseconds())/1000, 0) / float64(max(d.events, 1))
	}
	return each(d.gateway - without.gateway), each(d.server - without.server)
}

// changeService changes a Service for the duration of a measurement, and waits until all kubelets of a group have the
// events.
func (p *nodePathLab) changeService(ctx context.Context, s watchedService, g *kubelets) (d delivered, err error) {
	if err := p.AwaitQuiet(ctx); err != nil {
		return d, err
	}
	received := g.modified.Load()
	before, err := p.cpuTimes()
	if err != nil {
		return d, err
	}
	load := experiment.Load{
		Workers: changeWorkers, Rate: changesPerSecond, Count: int(math.Ceil(changesPerSecond * p.run.own.Duration.D.Seconds())),
		Kind: bulk.ErrorKind, Latencies: experiment.NewLatencies(), Tally: p.Result.Errors,
		Do: func(ctx context.Context, _, _ int) error { return s.change(ctx) },
	}
	wanted := load.Run(ctx) * len(g.all)
	if err := ctx.Err(); err != nil {
		return d, err
	}
	err = p.await(ctx, p.front.name+": events received", wanted, func() int { return int(g.modified.Load() - received) })
	if err != nil {
		return d, err
	}
	after, err := p.cpuTimes()
	return delivered{wanted, after.gateway - before.gateway, after.server - before.server}, err
}

// cpuTimes returns the CPU time of the gateway and the API server.
func (p *nodePathLab) cpuTimes() (d delivered, err error) {
	server, err := p.process(clusterdir.APIServerName(0))
	if err != nil {
		return d, err
	}
	if d.server, err = process.CPUTime(server.PID); err != nil {
		return d, err
	}
	d.gateway, err = p.front.cpu()
	return d, err
}

// judgeWatches appends the verdicts of the row watches.
func (r *nodePathRun) judgeWatches() {
	ours, theirs := r.kubelets[kubeGateway], r.kubelets[direct]
	r.Judge(limitKubelet, ours.memory.gateway/kibibyte, ours.kubelets, "")
	r.Judge(limitKubeletRatio, theirs.memory.live/max(ours.memory.gateway, 1), min(ours.kubelets, theirs.kubelets), "")
	r.Judge(limitDelivery, ours.gatewayMicros, ours.events, "")
	figures := func(memory, micros float64) []experiment.Figure {
		return []experiment.Figure{
			{Name: "memory of a kubelet with its watches", Unit: "KiB", Value: memory / kibibyte}, {Name: "CPU for an event of a kubelet's watch", Unit: "µs", Value: micros},
		}
	}
	r.Result.Compare(kubeGateway, "kube-apiserver", figures(ours.memory.gateway, ours.gatewayMicros), figures(theirs.memory.live, theirs.serverMicros))
	r.Result.Note("Memory of a kubelet is resident memory of kube-gateway, with both connections, and in kube-apiserver memory that is in use after a garbage collection, with stacks: less than its resident memory. Buffers of the kernel are not included.")
	r.Result.Note("CPU for an event is that of a change of a Service, which all kubelets watch, without that of the same changes with %d kubelets. It includes the kernel's work for the system calls of the server; on loopback, that is also the receiver's part of TCP.", firstKubelets)
}
