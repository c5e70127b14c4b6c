package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
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
	// own with a low priority. Otherwise it would delay the clients that are measured meanwhile.
	FloodCommand = "gateway-flood"

	floodNiceness = "19"
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

// Run sends the requests.
func (f *Flooder) Run(ctx context.Context) (FloodReport, error) {
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

// start starts the flood as a process. The caller must call the function that it returns, which waits for the
// end of the process.
func (f *Flooder) start(ctx context.Context) (end func() (FloodReport, error), err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "nice", "-n", floodNiceness, program, "bench", FloodCommand, "--addresses", strings.Join(f.Addresses, ","),
		"--kubeconfig", f.Kubeconfig, "--rate", fmt.Sprint(f.Rate), "--connections", strconv.Itoa(f.Connections), "--duration", f.Duration.String())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the flood: %w", err)
	}
	return func() (r FloodReport, err error) {
		if err := cmd.Wait(); err != nil {
			return r, fmt.Errorf("flood: %w: %s", err, lastLine(stderr.Bytes()))
		}
		return r, json.Unmarshal(stdout.Bytes(), &r)
	}, nil
}
