package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

const (
	// FloodCommand is the hidden command below `k1m bench` that runs a [Flooder]. The flood is a process of its own, with the
	// lowest priority (SCHED_IDLE), so that it takes as little as possible from what is measured. Other clients are delayed
	// all the same.
	FloodCommand = "gateway-flood"
	// FloodConnected is the line that the process writes when all its connections are open.
	FloodConnected = "connected\n"

	// floodInFlight is the largest number of requests in flight on a connection.
	floodInFlight = 20
	// floodRound is the time after which each connection has had a turn, and floodTurns the number of turns in it, so that
	// only some of the connections send at the same time.
	floodRound = 20 * time.Millisecond
	floodTurns = 10
)

// Flooder sends small GETs at a rate, which need not be reached.
type Flooder struct {
	Addresses   []string
	Kubeconfig  string
	Rate        float64
	Connections int
	Duration    time.Duration
}

// FloodReport is the result of a flood: the number of requests that were answered with 200, and of all others.
type FloodReport struct {
	Passed  int64 `json:"passed"`
	Refused int64 `json:"refused"`
}

// AddFlags binds the options to flags.
func (f *Flooder) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.Addresses, "addresses", nil, "host:port of the servers")
	fs.StringVar(&f.Kubeconfig, "kubeconfig", "", "file with the credentials")
	fs.Float64Var(&f.Rate, "rate", 0, "requests per second")
	fs.IntVar(&f.Connections, "connections", 0, "number of connections")
	fs.DurationVar(&f.Duration, "duration", 0, "duration")
}

// Validate returns the first invalid option as a usage error.
func (f *Flooder) Validate() error {
	if len(f.Addresses) == 0 || f.Kubeconfig == "" || f.Rate <= 0 || f.Connections < 1 || f.Duration <= 0 {
		return usage.Errorf("--addresses, --kubeconfig, --rate, --connections and --duration are required; `k1m bench gateway --only flood` sets them")
	}
	return nil
}

// Run opens the connections, calls connected and then sends the requests.
func (f *Flooder) Run(ctx context.Context, connected func()) (FloodReport, error) {
	config, err := kube.Config(f.Kubeconfig)
	if err != nil {
		return FloodReport{}, err
	}
	credentials, err := rest.TLSConfigFor(config)
	if err != nil {
		return FloodReport{}, err
	}
	run := &floodRun{Flooder: f, credentials: credentials, ended: make(chan floodEnd, f.Connections)}
	defer run.close()
	if err := run.dialAll(ctx); err != nil {
		return FloodReport{}, err
	}
	connected()
	err = run.send(ctx)
	return FloodReport{Passed: run.passed.Load(), Refused: run.refused.Load()}, err
}

// floodRun is a running flood.
type floodRun struct {
	*Flooder
	credentials *tls.Config
	connections []*floodConnection
	responses
	ended chan floodEnd
}

// floodEnd is the end of the connection with a number.
type floodEnd struct {
	number int
	err    error
}

func (r *floodRun) dialAll(ctx context.Context) error {
	r.connections = make([]*floodConnection, r.Connections)
	for number := range r.connections {
		if err := r.dial(ctx, number); err != nil {
			return err
		}
	}
	return nil
}

// dial opens the connection with a number, and receives its responses.
func (r *floodRun) dial(ctx context.Context, number int) error {
	address := r.Addresses[number%len(r.Addresses)]
	c, err := dialFlood(ctx, address, r.credentials, &r.responses)
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", address, err)
	}
	r.connections[number] = c
	go func() { r.ended <- floodEnd{number, c.receive()} }()
	return nil
}

// send sends requests at the rate for the duration. The connections take turns: each sends what is due since its last
// turn, or less if too many of its requests are in flight; those are not made up for. A client whose connection must move
// dials again, as client-go does.
func (r *floodRun) send(ctx context.Context) error {
	interval := time.Duration(float64(time.Second) * float64(r.Connections) / r.Rate)
	begun, last := time.Now(), make([]time.Duration, r.Connections)
	turns := time.NewTicker(floodRound / floodTurns)
	defer turns.Stop()
	for turn := 0; ; turn++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case end := <-r.ended:
			if err := r.replace(ctx, end); err != nil {
				return err
			}
		case <-turns.C:
		}
		now := time.Since(begun)
		if now >= r.Duration {
			return nil
		}
		for i := turn % floodTurns; i < r.Connections; i += floodTurns {
			due := int((now - last[i]) / interval)
			last[i] += time.Duration(due) * interval
			// If the connection has ended, the reason is in r.ended.
			_ = r.connections[i].send(due)
		}
	}
}

// replace dials again for a connection that must move. Another end is an error.
func (r *floodRun) replace(ctx context.Context, end floodEnd) error {
	if !errors.Is(end.err, errMoved) {
		return fmt.Errorf("a connection ended: %w", end.err)
	}
	_ = r.connections[end.number].socket.Close()
	return r.dial(ctx, end.number)
}

func (r *floodRun) close() {
	for _, c := range r.connections {
		if c != nil {
			_ = c.socket.Close()
		}
	}
}

// start starts the flood as a process, and waits until its connections are open: what handshakes cost is not a part of the
// flood. The caller must call the function that it returns, which waits for the end of the process.
func (f *Flooder) start(ctx context.Context) (end func() (FloodReport, error), err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "chrt", "--idle", "0", program, "bench", FloodCommand, "--addresses", strings.Join(f.Addresses, ","),
		"--kubeconfig", f.Kubeconfig, "--rate", fmt.Sprint(f.Rate), "--connections", strconv.Itoa(f.Connections), "--duration", f.Duration.String())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("starting the flood: %w", err)
	}
	reader := bufio.NewReader(stdout)
	end = func() (r FloodReport, err error) {
		report, readErr := io.ReadAll(reader)
		if err := cmd.Wait(); err != nil {
			return r, fmt.Errorf("flood: %w: %s", err, lastLine(stderr.Bytes()))
		}
		return r, errors.Join(readErr, json.Unmarshal(report, &r))
	}
	if line, err := reader.ReadString('\n'); err != nil || line != FloodConnected {
		_, endErr := end()
		return nil, errors.Join(fmt.Errorf("the flood did not connect: %q, %v", line, err), endErr)
	}
	return end, nil
}
