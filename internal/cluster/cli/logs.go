package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/nxadm/tail"
	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func newLogs(name *string) *cobra.Command {
	follow := false
	cmd := &cobra.Command{
		Use:   "logs [COMPONENT]",
		Short: "Print the log of a component, or of all",
		Example: `  k1m logs                     every component's, each line with its name
  k1m logs kube-apiserver -f   one, and go on as it grows
  k1m logs supervisor          what was started, what died`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, _, err := existing(*name)
			if err != nil {
				return err
			}
			files, err := logFiles(dir, args)
			if err != nil {
				return err
			}
			return printLogs(cmd.Context(), cmd.OutOrStdout(), files, follow)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", follow, "go on printing as the log grows")
	return cmd
}

func logFiles(dir clusterdir.Dir, args []string) ([]string, error) {
	files, err := filepath.Glob(dir.Log("*"))
	if err != nil {
		return nil, err
	}
	if len(args) == 0 {
		return files, nil
	}
	wanted := dir.Log(args[0])
	if slices.Contains(files, wanted) {
		return []string{wanted}, nil
	}
	var known []string
	for _, file := range files {
		known = append(known, componentOf(file))
	}
	return nil, usage.Errorf("no log of %q; there is %s", args[0], strings.Join(known, ", "))
}

func componentOf(file string) string { return strings.TrimSuffix(filepath.Base(file), ".log") }

// printLogs prints one file as it is, several with the component's name on
// each line.
func printLogs(ctx context.Context, w io.Writer, files []string, follow bool) error {
	output := &lineWriter{w: w}
	var group sync.WaitGroup
	errs := make([]error, len(files))
	for i, file := range files {
		prefix := ""
		if len(files) > 1 {
			prefix = componentOf(file) + " | "
		}
		if !follow {
			errs[i] = copyLines(ctx, output, file, prefix, false)
			continue
		}
		group.Go(func() { errs[i] = copyLines(ctx, output, file, prefix, true) })
	}
	group.Wait()
	return errors.Join(errs...)
}

func copyLines(ctx context.Context, output *lineWriter, file, prefix string, follow bool) error {
	reading, err := tail.TailFile(file, tail.Config{Follow: follow, ReOpen: follow, MustExist: true, Logger: tail.DiscardingLogger})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading log: %w", err)
	}
	defer reading.Cleanup()
	for {
		select {
		case <-ctx.Done():
			return reading.Stop()
		case line, more := <-reading.Lines:
			if !more {
				// Its goroutine may live on for a moment after the last line.
				return reading.Wait()
			}
			if err := output.line(prefix, line.Text); err != nil {
				return err
			}
		}
	}
}

// lineWriter keeps lines of several logs whole.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lineWriter) line(prefix, text string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := fmt.Fprintln(l.w, prefix+text)
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
