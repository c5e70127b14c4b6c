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
)

// way is a path whose throughput is measured.
type way struct {
	from, to *netns.Namespace
	address  netip.Addr // of to
}

// throughput measures the row throughput. The contenders take turns, so that load of the machine meets all of them.
func (b *bench) throughput(ctx context.Context) (err error) {
	c, err := newChain(b.labs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.remove()) }()
	if err := c.addOverlay(); err != nil {
		return err
	}
	return b.withLab(ctx, agent.ModeOneMAC, 2, 1, &lab.Timings{}, func(l *lab.Lab) error {
		first, second := l.Nodes()[0].Pods[0], l.Nodes()[1].Pods[0]
		contenders := []struct {
			name string
			way  way
		}{{"network", way{first.NS, second.NS, second.Address}}, {"plain routing", c.route()}, {"VXLAN", c.overlay()}}
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
		b.reportThroughput(rates)
		return nil
	})
}

// reportThroughput judges the median of the ratios of each round.
func (b *bench) reportThroughput(rates map[string][]float64) {
	table := b.Result.Table("Throughput", "way", "measurements", "median, Gbit/s", "least, Gbit/s", "÷ plain routing")
	plain := rates["plain routing"]
	for _, name := range []string{"network", "plain routing", "VXLAN"} {
		var ratios []float64
		for i, rate := range rates[name] {
			ratios = append(ratios, rate/plain[i])
		}
		ratio := median(ratios)
		all := append([]float64{}, rates[name]...)
		middle := median(all)
		table.Add(name, len(all), 8*middle/giga, 8*all[0]/giga, ratio)
		if name == "plain routing" {
			continue
		}
		if name == "network" {
			b.Judge(limitThroughput, ratio, len(all), "")
		}
		figure := func(rate float64) []experiment.Figure {
			return []experiment.Figure{{Name: "throughput", Unit: "Gbit/s", Value: 8 * rate / giga, MoreIsBetter: true}}
		}
		b.Result.Compare(name, "plain routing", figure(middle), figure(median(append([]float64{}, plain...))))
	}
	b.Result.Note("Throughput: one TCP connection between two namespaces, through three routers: the nodes and the provider's router. Plain routing and VXLAN have the same namespaces without bridges, agent and filter. " +
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
	err = w.from.Do(func() (err error) {
		client, err = net.DialTimeout("tcp6", listener.Addr().String(), timeout)
		return err
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
