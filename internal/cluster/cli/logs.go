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
		Short: "Print the log of a component or of all components",
		Long: `Print the log of a component or of all components. In the output for all components, each
line starts with the name of the component.`,
		Example: `  # Print the logs of all components
  k1m logs

  # Print the log of the API server and follow it
  k1m logs kube-apiserver -f

  # Print the log of the supervisor, which reports starts and exits of components
  k1m logs supervisor`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, _, err := loadCluster(*name)
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
	cmd.Flags().BoolVarP(&follow, "follow", "f", follow, "print new lines as they are written")
	return cmd
}

// logFiles returns the log files of the component in args, or of all components if args is empty.
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
	var available []string
	for _, file := range files {
		available = append(available, componentOf(file))
	}
	return nil, usage.Errorf("no log of %q; available logs: %s", args[0], strings.Join(available, ", "))
}

func componentOf(file string) string { return strings.TrimSuffix(filepath.Base(file), ".log") }

// printLogs prints log files. If there are several, each line starts with the component's name.
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

// copyLines copies the lines of a log file to the output. If follow is set, it also copies new lines until
// ctx is done.
func copyLines(ctx context.Context, output *lineWriter, file, prefix string, follow bool) error {
	reader, err := tail.TailFile(file, tail.Config{Follow: follow, ReOpen: follow, MustExist: true, Logger: tail.DiscardingLogger})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading log: %w", err)
	}
	defer reader.Cleanup()
	for {
		select {
		case <-ctx.Done():
			return reader.Stop()
		case line, more := <-reader.Lines:
			if !more {
				// The reader's goroutine closes Lines before it exits. Wait returns its error.
				return reader.Wait()
			}
			if err := output.writeLine(prefix, line.Text); err != nil {
				return err
			}
		}
	}
}

// lineWriter writes whole lines of several log files, which are read concurrently.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lineWriter) writeLine(prefix, text string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := fmt.Fprintln(l.w, prefix+text)
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
