package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
	"github.com/k8s-1m/k8s-1m/internal/cluster/lifecycle"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// bulkCommand is the common part of the subcommands of `k1m nodes` and `k1m pods`. It adds their flags,
// performs a bulkAction, waits for its effect, and prints the result.
type bulkCommand struct {
	name    *string
	options bulk.Options
	wait    bool
	timeout time.Duration
	output  string
}

// bulkAction is one bulk operation.
type bulkAction struct {
	verb, kind, whenSkipped string // arguments of [bulk.Summary.Print]
	do                      func(context.Context, *bulk.Clients, bulk.Options) (bulk.Summary, error)
	// await waits until all objects are in the state awaited, such as "ready". It is nil if the
	// operation has no effect to wait for.
	awaited string
	await   func(context.Context, *bulk.Clients, bulk.Options) error
}

// bulkResult is the output of -o json.
type bulkResult struct {
	bulk.Summary
	// WaitSeconds is the time from the start of the operation until all objects were in the awaited
	// state.
	WaitSeconds float64 `json:"waitSeconds,omitempty"`
	Error       string  `json:"error,omitempty"`
}

func newBulkCommand(name *string, prefix string) *bulkCommand {
	return &bulkCommand{name: name, options: bulk.DefaultOptions(prefix), wait: true, timeout: defaultTimeout}
}

// addFlags adds the flags. An empty waitUsage means that the command never waits.
func (b *bulkCommand) addFlags(cmd *cobra.Command, waitUsage string) {
	b.options.AddFlags(cmd.Flags())
	cmd.Flags().StringVarP(&b.output, "output", "o", b.output, "output format: json (default: text)")
	if waitUsage != "" {
		cmd.Flags().BoolVar(&b.wait, "wait", b.wait, waitUsage)
		cmd.Flags().DurationVar(&b.timeout, "timeout", b.timeout, "stop waiting after this time without progress")
	}
}

func (b *bulkCommand) run(cmd *cobra.Command, a bulkAction) error {
	if b.output != "" && b.output != "json" {
		return usage.Errorf("-o %q: no such format; use json", b.output)
	}
	if err := b.options.Validate(); err != nil {
		return err
	}
	clients, err := b.connect()
	if err != nil {
		return err
	}
	// Progress goes to stderr, so that stdout contains only the result.
	display := progress.New(cmd.ErrOrStderr())
	started := time.Now()
	summary, err := b.perform(cmd.Context(), display, clients, a)
	result := bulkResult{Summary: summary}
	if err == nil && b.wait && a.await != nil {
		err = b.awaitAll(cmd.Context(), display, clients, a)
		result.WaitSeconds = time.Since(started).Seconds()
	}
	display.Close()
	return b.print(cmd, a, result, err)
}

func (b *bulkCommand) connect() (*bulk.Clients, error) {
	dir, config, err := loadCluster(*b.name)
	if err != nil {
		return nil, err
	}
	if err := lifecycle.RequireRunning(dir); err != nil {
		return nil, err
	}
	rest, err := kube.Config(dir.Kubeconfig(pki.SuperAdmin.File))
	if err != nil {
		return nil, err
	}
	return bulk.NewClients(rest, component.ClientURLs(config), b.options.Connections)
}

// perform performs the operation and displays its progress.
func (b *bulkCommand) perform(ctx context.Context, display progress.Display, clients *bulk.Clients, a bulkAction) (bulk.Summary, error) {
	task := display.Task(a.kind+" "+a.verb, b.options.Range.Count)
	options := b.options
	options.Progress = task.Set
	summary, err := a.do(ctx, clients, options)
	if err != nil {
		progress.Fail(ctx, task, fmt.Sprintf("%d done", summary.Done))
		return summary, err
	}
	task.Done(fmt.Sprintf("%d, %.0f/s", summary.Done, summary.PerSecond))
	return summary, nil
}

// awaitAll waits for the effect of the operation and displays its progress.
func (b *bulkCommand) awaitAll(ctx context.Context, display progress.Display, clients *bulk.Clients, a bulkAction) error {
	task := display.Task(a.kind+" "+a.awaited, b.options.Range.Count)
	options := b.options
	options.Progress = task.Set
	if err := a.await(ctx, clients, options); err != nil {
		progress.Fail(ctx, task, "incomplete")
		return fmt.Errorf("waiting until all %s are %s: %w; see `k1m status --name %s`", a.kind, a.awaited, err, *b.name)
	}
	task.Done(fmt.Sprint(b.options.Range.Count))
	return nil
}

func (b *bulkCommand) print(cmd *cobra.Command, a bulkAction, result bulkResult, failure error) error {
	if failure != nil {
		result.Error = failure.Error()
		if cmd.Context().Err() != nil {
			failure = errors.New("interrupted; repeat the command to continue")
		}
	}
	if b.output == "json" {
		return errors.Join(printJSON(cmd, result), failure)
	}
	if result.Wanted > 0 {
		result.Print(cmd.OutOrStdout(), a.verb, a.kind, a.whenSkipped)
	}
	if failure == nil && result.WaitSeconds > 0 {
		fmt.Fprintf(cmd.OutOrStdout(), "all %d %s are %s after %.1fs\n", result.Wanted, a.kind, a.awaited, result.WaitSeconds)
	}
	if failure == nil && result.NextFirst > 0 && result.Skipped == result.Wanted {
		fmt.Fprintf(cmd.OutOrStdout(), "to add more, use --first %d or another --prefix\n", result.NextFirst)
	}
	return failure
}
