package gateway

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
)

const (
	floodAgent       = "flooder"
	floodConnections = 50
	otherConnections = 50
	otherRate        = 200.0
	// throttleRate is the number of requests per second that the throttle permits the flood.
	throttleRate = 100
)

// The phases of the row flood. The last ones are those of kube-gateway.
const (
	quiet          = "quiet"
	flooding       = "flood"
	floodElsewhere = "flood, throttled by another gateway"
	floodThrottled = "flood, throttled"
)

// flood measures other clients while one User-Agent floods the API servers.
func (l *lab) flood(ctx context.Context) error {
	table := l.Result.Table(fmt.Sprintf("Other clients (%.0f requests/s) while one User-Agent sends %.0f requests/s", otherRate, l.options.FloodRate),
		"front", "phase", "others' p50, ms", "p99, ms", "failed, %", "flood: answered 200, /s", "answered otherwise, /s", "CPU of the front, cores", "CPU of the API servers, cores")
	for _, name := range l.names(direct, haproxy, kubeGateway) {
		p99, err := l.floodFront(ctx, name, table)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if name == kubeGateway {
			l.Judge(limitFlood, p99[floodThrottled]/max(p99[quiet], 1e-3), int(otherRate*l.options.Flood.D.Seconds()), "")
		}
	}
	l.Result.Note("The flood is generated on the same machine, and sends fewer requests if other processes use the CPUs. "+
		"In the phase %q it goes to a second gateway in front of the same API servers, which the other clients do not use: "+
		"what they are slower by than in a quiet time is then not caused by their gateway.", floodElsewhere)
	return nil
}

// floodFront measures the phases of a front, and returns the p99 of each in milliseconds.
func (l *lab) floodFront(ctx context.Context, name string, table *experiment.Table) (map[string]float64, error) {
	p99 := map[string]float64{}
	err := l.throttling("").with(ctx, name, func(f *front) error {
		others, err := dial(ctx, f, l.tls, otherConnections)
		if err != nil {
			return err
		}
		defer others.close()
		measure := func(phase string, flooded *front) error {
			m, err := l.measureFlood(ctx, f, others, flooded)
			if err != nil {
				return err
			}
			p99[phase] = m.others.Latencies.Millis(99)
			table.Add(name, phase, m.others.Latencies.Millis(50), p99[phase], 100*m.others.Tally.Rate(),
				m.perSecond(m.flood.Passed), m.perSecond(m.flood.Refused), m.frontCPU.Seconds()/m.seconds, m.usage.Cores(component.RoleAPIServer))
			return nil
		}
		if err := measure(quiet, nil); err != nil {
			return err
		}
		if err := measure(flooding, f); err != nil || name != kubeGateway {
			return err
		}
		if err := l.floodAnother(ctx, func(another *front) error { return measure(floodElsewhere, another) }); err != nil {
			return err
		}
		if err := f.throttle(ctx, floodAgent, throttleRate); err != nil {
			return err
		}
		return measure(floodThrottled, f)
	})
	return p99, err
}

// floodAnother calls measure with a second gateway that throttles the flood.
func (l *lab) floodAnother(ctx context.Context, measure func(*front) error) error {
	another := l.throttling("another")
	if err := os.Mkdir(another.dir, 0o700); err != nil {
		return err
	}
	return another.with(ctx, kubeGateway, func(f *front) error {
		if err := f.throttle(ctx, floodAgent, throttleRate); err != nil {
			return err
		}
		return measure(f)
	})
}

// throttling returns the target with a gateway whose throttle can be changed. Its files are in a directory below that of
// the target.
func (l *lab) throttling(directory string) target {
	t := l.target
	t.dir = filepath.Join(t.dir, directory)
	return t.withFields(map[string]any{"control": map[string]any{"socket": filepath.Join(t.dir, "control.sock")}})
}

// flooded is what was measured in a phase of a flood.
type flooded struct {
	others   experiment.Load
	flood    FloodReport
	seconds  float64
	frontCPU time.Duration
	usage    experiment.Measured
}

func (m flooded) perSecond(count int64) float64 { return float64(count) / m.seconds }

// measureFlood measures the other clients of a front while a front is flooded; nil for none.
func (l *lab) measureFlood(ctx context.Context, f *front, others *connections, target *front) (m flooded, err error) {
	m.others = experiment.Load{
		Workers: otherConnections, Rate: otherRate, Kind: kindOf, Latencies: experiment.NewLatencies(), Tally: experiment.NewTally(1),
		Do: func(ctx context.Context, _, worker int) error {
			_, err := others.get(ctx, worker, smallPath, protobuf)
			return err
		},
	}
	end := func() (FloodReport, error) { return FloodReport{}, nil }
	if target != nil {
		flooder := &Flooder{
			Addresses: target.addresses, Kubeconfig: l.Cluster.Dir.Kubeconfig(pki.Admin.File), Rate: l.options.FloodRate,
			Connections: floodConnections, Duration: l.options.Flood.D,
		}
		if end, err = flooder.start(ctx); err != nil {
			return m, err
		}
	}
	before, err := f.cpu()
	if err != nil {
		return m, err
	}
	window, begun := l.Sampler.Begin(ctx), time.Now()
	running, stop := context.WithTimeout(ctx, l.options.Flood.D)
	defer stop()
	m.others.Run(running)
	m.seconds = time.Since(begun).Seconds()
	if m.flood, err = end(); err != nil {
		return m, err
	}
	m.usage = window.End(ctx)
	after, err := f.cpu()
	m.frontCPU = after - before
	return m, err
}

// throttle adds a rule to the throttle of the running gateway, as an operator does.
func (f *front) throttle(ctx context.Context, agent string, perSecond int) error {
	program, err := component.FindBinary("kube-gateway")
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, program, "throttle", "add", "--config", f.config, "--user-agent", agent, "--qps", strconv.Itoa(perSecond)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("kube-gateway throttle add: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
