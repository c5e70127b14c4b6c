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
	// Rates are there after some samples, which take longer where much is going on.
	topSamples  = 3
	topPatience = 20 * time.Second
	// The size of a page that is not in a terminal.
	pageWidth, pageHeight = 124, 100
)

func newTop(name *string) *cobra.Command {
	output, interval, once := outputText, experiment.SampleInterval, false
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show at a glance what a cluster does, and what that takes",
		Long: `Show at a glance what a cluster does, and what that takes: CPU and memory of each process,
requests by verb and resource, latencies, watch events, the store's size, pods that are
scheduled and that wait. Everything is read each second, and curves show the last minute.

Without a terminal, or with --once, it shows one page after some seconds and ends.`,
		Example: `  k1m top
  k1m top --once
  k1m top -o json | jq '.[] | select(.title == "CPU").lines'`,
		Args: usageArgs(cobra.NoArgs),
	}
	cmd.Flags().DurationVar(&interval, "interval", interval, "how often the page is drawn anew")
	cmd.Flags().BoolVar(&once, "once", once, "show one page and end")
	addOutputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if interval < experiment.SampleInterval {
			return usage.Errorf("--interval %v: at least %v, which is how often everything is read", interval, experiment.SampleInterval)
		}
		if err := validateOutput(output); err != nil {
			return err
		}
		dir, config, err := existing(*name)
		if err != nil {
			return err
		}
		if err := lifecycle.RequireRunning(dir); err != nil {
			return err
		}
		sampler, err := experiment.Watch(dir, config)
		if err != nil {
			return err
		}
		defer sampler.Stop()
		frame := func() top.Frame {
			return top.Frame{Head: topHead(dir, config), Foot: "q ends", Blocks: top.Blocks(sampler.Recent(top.PastPoints))}
		}
		if out, is := cmd.OutOrStdout().(*os.File); is && !once && output == outputText && term.IsTerminal(int(out.Fd())) {
			return top.Live(cmd.Context(), os.Stdin, out, interval, frame)
		}
		if err := awaitSamples(cmd.Context(), sampler); err != nil {
			return err
		}
		now := frame()
		now.Foot = ""
		return printAs(cmd, output, now.Blocks, func(out io.Writer) { fmt.Fprintln(out, top.Render(now, pageWidth, pageHeight)) })
	}
	return cmd
}

// awaitSamples waits until there are rates.
func awaitSamples(ctx context.Context, sampler *experiment.Sampler) error {
	ctx, cancel := context.WithTimeoutCause(ctx, topPatience, errors.New("the components were not read in time; see `k1m status`"))
	defer cancel()
	for {
		for _, series := range sampler.Recent(topSamples) {
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

// topHead says which cluster it is, and how it does.
func topHead(dir clusterdir.Dir, config clusterdir.Config) string {
	state, err := supervisor.ReadState(dir)
	if err != nil || !state.Supervisor.Alive() {
		return fmt.Sprintf("%s does not run any more", config.Name)
	}
	head := fmt.Sprintf("%s, %s, %s, up %v", config.Name, config.Settings.DescribeStore(), config.Settings.Scheduler, time.Since(state.StartedAt).Round(time.Second))
	for _, c := range state.Components {
		if c.Phase != supervisor.Ready {
			head += fmt.Sprintf(", %s is %s", c.Name, c.Phase)
		}
	}
	return head
}
