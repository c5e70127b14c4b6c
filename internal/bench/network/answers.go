package network

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/network/address"
	"github.com/k8s-1m/k8s-1m/internal/network/neighbour"
	"github.com/k8s-1m/k8s-1m/internal/network/netns"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

const (
	// window is the number of solicitations that are sent together; the next ones follow when all are answered, or after
	// answerTimeout.
	window        = 256
	answerTimeout = 100 * time.Millisecond
	stopTimeout   = 10 * time.Second
	link          = "eth0"
	fewAddresses  = 100
	manyAddresses = 1_000_000
)

var (
	answeredPrefix = netip.MustParsePrefix("2001:db8:2:0:0:5::/96")
	asker          = netip.MustParseAddr("fe80::1")
)

// responder is a program that answers neighbour solicitations.
type responder struct {
	name string
	// args returns the arguments; dir is for files.
	args func(dir string) ([]string, error)
	path string
}

func experimentFail(ctx context.Context, task progress.Task, err error) {
	progress.Fail(ctx, task, err.Error())
}

// responders returns network-agent, and ndppd if it is installed.
func (b *bench) responders() []responder {
	all := []responder{{name: "network-agent", path: b.agent, args: func(dir string) ([]string, error) {
		return []string{
			"--node", "bench", "--uplink", link, "--mode", "on-link", "--prefix", answeredPrefix.String(), "--metrics-address", "", "--state", filepath.Join(dir, "state"),
			"--cni-config-dir", filepath.Join(dir, "net.d"), "--cni-results-dir", filepath.Join(dir, "results"), "--cni-leases-dir", filepath.Join(dir, "leases"),
		}, nil
	}}}
	ndppd, err := exec.LookPath("ndppd")
	if err != nil {
		return all
	}
	return append(all, responder{name: "ndppd", path: ndppd, args: func(dir string) ([]string, error) {
		config := filepath.Join(dir, "ndppd.conf")
		text := fmt.Sprintf("proxy %s {\n router yes\n rule %s {\n  static\n }\n}\n", link, answeredPrefix)
		return []string{"-c", config}, os.WriteFile(config, []byte(text), 0o644)
	}})
}

// answerRate is a measurement of a responder.
type answerRate struct {
	perSecond, cpuMicros float64
	answers, lost        int
}

// answers measures the row answers.
func (b *bench) answers(ctx context.Context) error {
	responders := b.responders()
	table := b.Result.Table("Neighbour answers", "answered by", "addresses", "measurements", "answers, /s", "CPU for an answer, µs", "lost, %")
	least, leastCase := math.Inf(1), ""
	for _, addresses := range []int{fewAddresses, manyAddresses} {
		rates := map[string][]float64{}
		cpu := map[string][]float64{}
		for range b.options.Rounds.N {
			for _, r := range responders {
				rate, err := b.measureAnswers(ctx, r, addresses)
				if err != nil {
					return fmt.Errorf("%s: %w", r.name, err)
				}
				rates[r.name], cpu[r.name] = append(rates[r.name], rate.perSecond), append(cpu[r.name], rate.cpuMicros)
				if len(rates[r.name]) == b.options.Rounds.N {
					lost := 100 * float64(rate.lost) / float64(rate.lost+rate.answers)
					table.Add(r.name, addresses, b.options.Rounds.N, median(rates[r.name]), median(cpu[r.name]), lost)
				}
			}
		}
		if len(responders) < 2 {
			continue
		}
		ours, theirs := median(rates["network-agent"]), median(rates["ndppd"])
		figures := func(rate, cpu float64) []experiment.Figure {
			suffix := fmt.Sprintf(", %d addresses", addresses)
			return []experiment.Figure{
				{Name: "neighbour answers" + suffix, Unit: "/s", Value: rate, MoreIsBetter: true}, {Name: "CPU for a neighbour answer" + suffix, Unit: "µs", Value: cpu},
			}
		}
		b.Result.Compare("network-agent", "ndppd", figures(ours, median(cpu["network-agent"])), figures(theirs, median(cpu["ndppd"])))
		if ratio := ours / max(theirs, 1); ratio < least {
			least, leastCase = ratio, fmt.Sprintf("%d addresses", addresses)
		}
	}
	b.judgeAnswers(len(responders) == 2, least, leastCase)
	return nil
}

func (b *bench) judgeAnswers(compared bool, least float64, leastCase string) {
	if compared {
		b.Judge(limitAnswers, least, b.options.Rounds.N, leastCase)
		b.Result.Note("Answers: a router sends %d solicitations together, and the next ones when all are answered or after %s. ndppd has one static rule for the prefix.", window, answerTimeout)
		return
	}
	// Without ndppd there is no verdict that could be met.
	b.Judge(limitAnswers, 0, 0, "")
	for i := range b.Result.Verdicts {
		if v := &b.Result.Verdicts[i]; v.Operations == 0 && v.Unit == limitAnswers.Unit && v.Reason == "" {
			v.Reason = "ndppd is not installed; in Debian: apt-get install ndppd"
		}
	}
}

// measureAnswers starts a responder in a namespace, and asks it from another one.
func (b *bench) measureAnswers(ctx context.Context, r responder, addresses int) (rate answerRate, err error) {
	dir, err := os.MkdirTemp("", "k1m-answers-")
	if err != nil {
		return rate, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b.labs++
	name := fmt.Sprintf("k1mb-%d-%d-", os.Getpid(), b.labs)
	router, err := netns.Create(name + "router")
	if err != nil {
		return rate, err
	}
	defer func() { err = errors.Join(err, router.Delete()) }()
	node, err := netns.Create(name + "node")
	if err != nil {
		return rate, err
	}
	defer func() { err = errors.Join(err, node.Delete()) }()
	err = netns.Veth(netns.End{In: router, Name: link}, netns.End{In: node, Name: link}, chainMTU)
	if err == nil {
		// ndppd lets the kernel send its answers, which first asks for the router.
		err = router.AddAddress(link, netip.PrefixFrom(asker, 64))
	}
	if err != nil {
		return rate, err
	}
	args, err := r.args(dir)
	if err != nil {
		return rate, err
	}
	cmd := exec.CommandContext(ctx, r.path, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTimeout
	if err := node.Start(cmd); err != nil {
		return rate, err
	}
	defer func() {
		// Its exit code says only that it was told to end.
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}()
	return b.askRouter(ctx, router, cmd.Process.Pid, addresses)
}

// askRouter asks for addresses in turn, for the duration of a measurement, after the responder has begun to answer.
func (b *bench) askRouter(ctx context.Context, router *netns.Namespace, pid, addresses int) (rate answerRate, err error) {
	var socket *neighbour.Socket
	err = router.Do(func() (err error) {
		socket, err = neighbour.OpenSocket(link, answeredPrefix, true)
		return err
	})
	if err != nil {
		return rate, err
	}
	defer socket.Close()
	a := &asking{socket: socket, addresses: uint64(addresses)}
	begin := time.Now()
	for answered := 0; answered == 0; {
		if answered, err = a.ask(1); err != nil {
			return rate, err
		}
		if time.Since(begin) > b.options.Timeout || ctx.Err() != nil {
			return rate, errors.Join(fmt.Errorf("no answer within %s", b.options.Timeout), ctx.Err())
		}
	}
	before, err := process.CPUTime(pid)
	if err != nil {
		return rate, err
	}
	begin = time.Now()
	for time.Since(begin) < b.options.Duration.D && ctx.Err() == nil {
		answered, err := a.ask(window)
		if err != nil {
			return rate, err
		}
		rate.answers, rate.lost = rate.answers+answered, rate.lost+window-answered
	}
	seconds := time.Since(begin).Seconds()
	after, err := process.CPUTime(pid)
	rate.perSecond = float64(rate.answers) / seconds
	rate.cpuMicros = float64((after - before).Microseconds()) / float64(max(rate.answers, 1))
	return rate, errors.Join(err, ctx.Err())
}

// asking asks for the addresses of a prefix, one after the other and again.
type asking struct {
	socket    *neighbour.Socket
	addresses uint64
	next      uint64
	frames    [][]byte
}

// ask sends solicitations together, and returns how many were answered.
func (a *asking) ask(count int) (answered int, err error) {
	a.frames = a.frames[:0]
	waiting := map[netip.Addr]bool{}
	for range count {
		target := address.Host(answeredPrefix, 1<<16+a.next%a.addresses*257%a.addresses)
		a.next++
		waiting[target] = true
		a.frames = append(a.frames, neighbour.AppendSolicitation(nil, a.socket.Own, asker, target))
	}
	if _, err := a.socket.Send(a.frames); err != nil {
		return 0, err
	}
	if err := a.socket.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		return 0, err
	}
	// If there are fewer addresses than solicitations, an address is answered more than once.
	var frames [][]byte
	for answered < count {
		frames, err = a.socket.Receive(frames[:0])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return answered, nil
		}
		if err != nil {
			return answered, err
		}
		for _, frame := range frames {
			if target, _, ok := neighbour.ParseAdvertisement(frame); ok && waiting[target] {
				answered++
			}
		}
	}
	return answered, nil
}
