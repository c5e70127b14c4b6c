package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/lifecycle"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
	"github.com/k8s-1m/k8s-1m/internal/cluster/top"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

const (
	// topSamples is the number of samples before a page is printed, because rates need several samples.
	topSamples = 3
	// topTimeout is long, because a sample takes longer than its interval on a busy machine.
	topTimeout = 20 * time.Second
	// pageWidth and pageHeight are the size, in characters, of a page that is printed once.
	pageWidth, pageHeight = 124, 100
)

func newTop(name *string) *cobra.Command {
	output, interval, once := outputText, experiment.SampleInterval, false
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Display the load and the resource usage of a cluster",
		Long: `Display the load and the resource usage of a cluster: CPU and memory of each process, requests
by verb and resource, latencies, watch events, size of the store, and scheduled and pending pods.
Metrics are read every second. The sparklines show the last minute.

With --once, or if the output is not a terminal, the command prints one page after a few seconds
and exits.`,
		Example: `  # Display the metrics until q is pressed
  k1m top

  # Print one page
  k1m top --once

  # Print the CPU usage of all processes as JSON
  k1m top -o json | jq '.[] | select(.title == "CPU").lines'`,
		Args: usageArgs(cobra.NoArgs),
	}
	cmd.Flags().DurationVar(&interval, "interval", interval, "refresh interval")
	cmd.Flags().BoolVar(&once, "once", once, "print one page and exit")
	addOutputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if interval < experiment.SampleInterval {
			return usage.Errorf("--interval %v: must be at least %v, the interval at which metrics are read", interval, experiment.SampleInterval)
		}
		if err := validateOutput(output); err != nil {
			return err
		}
		dir, config, err := loadCluster(*name)
		if err != nil {
			return err
		}
		if err := lifecycle.RequireRunning(dir); err != nil {
			return err
		}
		sampler, err := experiment.StartSampler(dir, config)
		if err != nil {
			return err
		}
		defer sampler.Stop()
		nextFrame := func() top.Frame {
			return top.Frame{Header: topHeader(dir, config), Footer: "press q to quit", Blocks: top.Blocks(sampler.Recent(top.PastPoints))}
		}
		if out, ok := cmd.OutOrStdout().(*os.File); ok && !once && output == outputText && term.IsTerminal(int(out.Fd())) {
			return top.Live(cmd.Context(), os.Stdin, out, interval, nextFrame)
		}
		if err := awaitSamples(cmd.Context(), sampler); err != nil {
			return err
		}
		frame := nextFrame()
		frame.Footer = ""
		return printAs(cmd, output, frame.Blocks, func(out io.Writer) { fmt.Fprintln(out, top.Render(frame, pageWidth, pageHeight)) })
	}
	return cmd
}

// awaitSamples waits until there are enough samples for rates.
func awaitSamples(ctx context.Context, sampler *experiment.Sampler) error {
	ctx, cancel := context.WithTimeoutCause(ctx, topTimeout, errors.New("timed out reading the metrics of the components; see `k1m status`"))
	defer cancel()
	for {
		for _, series := range sampler.Recent(topSamples) {
			// A rate needs two samples, so n samples result in n-1 points.
			if series.Plot == experiment.CPUPlot && len(series.Points) >= topSamples-1 {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(experiment.SampleInterval / 2):
		}
	}
}

// topHeader returns a description of the cluster and of the components that are not ready.
func topHeader(dir clusterdir.Dir, config clusterdir.Config) string {
	state, err := supervisor.ReadState(dir)
	if err != nil || !state.Supervisor.Alive() {
		return fmt.Sprintf("%s is not running", config.Name)
	}
	header := fmt.Sprintf("%s, %s, %s, up %v", config.Name, config.Settings.DescribeStore(), config.Settings.Scheduler, time.Since(state.StartedAt).Round(time.Second))
	for _, c := range state.Components {
		if c.Phase != supervisor.Ready {
			header += fmt.Sprintf(", %s is %s", c.Name, c.Phase)
		}
	}
	return header
}
