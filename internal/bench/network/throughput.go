package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/network/agent"
	"github.com/k8s-1m/k8s-1m/internal/network/lab"
	"github.com/k8s-1m/k8s-1m/internal/network/netns"
)

const (
	blockSize = 256 << 10
	// warmUp is the time before a measurement in which a connection finds its speed.
	warmUp = 500 * time.Millisecond
	giga   = 1e9

	plainRouting = "plain routing"
)

// way is a path whose throughput is measured.
type way struct {
	from, to *netns.Namespace
	address  netip.Addr // of to
}

// judgedWay is the way whose throughput is judged. In the other modes, the lab's provider does more for each packet than a router.
const judgedWay = "network, " + agent.ModeRouted

// contender is a way with its name.
type contender struct {
	name string
	way  way
}

// throughput measures the row throughput. The contenders take turns, so that load of the machine meets all of them.
func (b *bench) throughput(ctx context.Context) (err error) {
	c, err := newChain("chain", true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.remove()) }()
	noBridge, err := newChain("plain", false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, noBridge.remove()) }()
	if err := noBridge.addOverlay(); err != nil {
		return err
	}
	contenders := []contender{{plainRouting, c.route()}, {"plain routing, provider without bridge", noBridge.route()}, {"VXLAN, provider without bridge", noBridge.overlay()}}
	return b.withModes(ctx, agent.Modes, contenders, func(contenders []contender) error { return b.takeTurns(ctx, contenders) })
}

// withModes adds the way between pods of two nodes in each mode to the contenders, and calls use while the labs are there.
func (b *bench) withModes(ctx context.Context, modes []string, contenders []contender, use func([]contender) error) error {
	if len(modes) == 0 {
		return use(contenders)
	}
	return b.withLab(ctx, modes[0], 2, 1, &lab.Timings{}, func(l *lab.Lab) error {
		first, second := l.Nodes()[0].Pods[0], l.Nodes()[1].Pods[0]
		added := contender{"network, " + modes[0], way{first.NS, second.NS, second.Address}}
		return b.withModes(ctx, modes[1:], append(contenders, added), use)
	})
}

// takeTurns measures all contenders in each round.
func (b *bench) takeTurns(ctx context.Context, contenders []contender) error {
	rates := map[string][]float64{}
	task := b.Display.Task("throughput", b.options.Rounds.N*len(contenders))
	for round := range b.options.Rounds.N {
		for i, contender := range contenders {
			rate, err := contender.way.measure(ctx, b.options.Duration.D, b.options.Timeout)
			if err != nil {
				experimentFail(ctx, task, err)
				return fmt.Errorf("%s: %w", contender.name, err)
			}
			rates[contender.name] = append(rates[contender.name], rate)
			task.Set(round*len(contenders) + i + 1)
		}
	}
	task.Done(fmt.Sprintf("%d measurements", b.options.Rounds.N*len(contenders)))
	b.reportThroughput(contenders, rates)
	return nil
}

// reportThroughput judges the median of the ratios of each round.
func (b *bench) reportThroughput(contenders []contender, rates map[string][]float64) {
	table := b.Result.Table("Throughput", "way", "measurements", "median, Gbit/s", "least, Gbit/s", "÷ plain routing")
	plain := rates[plainRouting]
	for _, c := range contenders {
		var ratios []float64
		for i, rate := range rates[c.name] {
			ratios = append(ratios, rate/plain[i])
		}
		ratio := median(ratios)
		all := append([]float64{}, rates[c.name]...)
		middle := median(all)
		table.Add(c.name, len(all), 8*middle/giga, 8*all[0]/giga, ratio)
		if c.name == plainRouting {
			continue
		}
		if c.name == judgedWay {
			b.Judge(limitThroughput, ratio, len(all), "")
		}
		figure := func(rate float64) []experiment.Figure {
			return []experiment.Figure{{Name: "throughput", Unit: "Gbit/s", Value: 8 * rate / giga, MoreIsBetter: true}}
		}
		b.Result.Compare(c.name, plainRouting, figure(middle), figure(median(append([]float64{}, plain...))))
	}
	b.Result.Note("Throughput: one TCP connection between two namespaces, through three routers: the nodes and the provider, whose bridge the nodes share. Plain routing has the same without bridge, agent and filter on the nodes. VXLAN has no bridge at the provider: compare it with plain routing without one. " +
		"The ratio is the median of the ratios of the rounds, in which all ways are measured one after the other.")
}

// measure returns the bytes a second that one TCP connection carries.
func (w way) measure(ctx context.Context, duration, timeout time.Duration) (rate float64, err error) {
	var listener net.Listener
	err = w.to.Do(func() (err error) {
		listener, err = net.Listen("tcp6", netip.AddrPortFrom(w.address, 0).String())
		return err
	})
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	var received atomic.Int64
	ended := make(chan error, 1)
	go func() { ended <- receive(listener, &received) }()
	var client net.Conn
	deadline := time.Now().Add(timeout)
	err = w.from.Do(func() (err error) {
		for {
			client, err = net.DialTimeout("tcp6", listener.Addr().String(), time.Until(deadline))
			// The kernel may take seconds to notice that the links of a new chain are up.
			if !errors.Is(err, unix.EHOSTUNREACH) || ctx.Err() != nil || time.Now().After(deadline) {
				return err
			}
		}
	})
	if err != nil {
		return 0, err
	}
	_ = client.SetDeadline(time.Now().Add(warmUp + duration + timeout))
	stop := make(chan struct{})
	sent := make(chan error, 1)
	go func() { sent <- send(client, stop) }()
	err = experiment.Sleep(ctx, warmUp)
	before, start := received.Load(), time.Now()
	if err == nil {
		err = experiment.Sleep(ctx, duration)
	}
	rate = float64(received.Load()-before) / time.Since(start).Seconds()
	close(stop)
	return rate, errors.Join(err, <-sent, client.Close(), <-ended)
}

func send(client net.Conn, stop <-chan struct{}) error {
	block := make([]byte, blockSize)
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		if _, err := client.Write(block); err != nil {
			return err
		}
	}
}

func receive(listener net.Listener, received *atomic.Int64) error {
	conn, err := listener.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	block := make([]byte, blockSize)
	for {
		n, err := conn.Read(block)
		received.Add(int64(n))
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
