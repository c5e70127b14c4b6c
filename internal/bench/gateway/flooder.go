package gateway

import (
	"bufio"
	"bytes"
	"context"
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

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

const (
	// FloodCommand is the hidden command below `k1m bench` that runs a [Flooder]. The flood is a process of its
	// own that runs only while a CPU is idle (SCHED_IDLE). Otherwise it would delay the clients that are measured meanwhile:
	// even with the lowest priority, a process is not interrupted at once by one that wakes up.
	FloodCommand = "gateway-flood"
	// FloodConnected is the line that the process writes when all its connections are open.
	FloodConnected = "connected\n"

	// floodInFlight is the largest number of requests in flight on a connection.
	floodInFlight = 20
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
	c, err := dial(ctx, &front{name: direct, addresses: f.Addresses}, credentials, f.Connections)
	if err != nil {
		return FloodReport{}, err
	}
	defer c.close()
	connected()
	running, stop := context.WithTimeout(ctx, f.Duration)
	defer stop()
	load := experiment.Load{
		Workers: f.Connections * floodInFlight, Rate: f.Rate, Kind: kindOf,
		Latencies: experiment.NewLatencies(), Tally: experiment.NewTally(1),
		Do: func(ctx context.Context, _, worker int) error {
			_, err := c.get(ctx, worker%f.Connections, smallPath, protobuf, "User-Agent", floodAgent)
			return err
		},
	}
	passed := int64(load.Run(running))
	return FloodReport{Passed: passed, Refused: load.Tally.Operations() - passed}, ctx.Err()
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
