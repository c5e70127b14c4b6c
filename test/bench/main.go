// Command bench measures mem_etcd and etcd. The table of results has one row for each figure. Each figure
// of mem_etcd has a required limit, and an aim that is stricter.
//
// Both stores are measured in the same run, one after the other, with server and client pinned to one core
// each. Data is on tmpfs, except for the rows that measure a disk. CPU is the CPU time of the server
// process. The result consists of result.json and index.html in results/<UTC>_store/. It is written after
// each row, so that an interrupted run keeps its rows. docs/benchmarks.md describes the measurement of each
// row.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"github.com/k8s-1m/k8s-1m/internal/bench/storeserver"
	"github.com/k8s-1m/k8s-1m/internal/util/number"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/util/machine"
)

const (
	// memory is a directory on tmpfs.
	memory = "/dev/shm"
)

// Exit codes.
const (
	exitMissed = 1
	exitUsage  = 2
)

var errUsage = errors.New("usage")

// lab is the environment of the measurements.
type lab struct {
	storeserver.Lab
	// disk is a directory on a disk, and diskName the name of its file system.
	disk, diskName string
	quick          bool
	repeat         int
	large          *largeStore
}

func main() {
	l := lab{Lab: storeserver.Lab{ServerCores: "0", ClientCores: "1"}}
	flag.BoolVar(&l.quick, "quick", false, "short run: a tenth of the operations, one sample, and 100,000 keys instead of 3,000,000 in the large store")
	flag.IntVar(&l.repeat, "repeat", 3, "number of samples of each row; the result is the median")
	flag.StringVar(&l.Bin, "bin", "bin", "directory of the programs")
	flag.StringVar(&l.disk, "disk", "target", "directory on a disk (not tmpfs), for the rows that measure a disk")
	only := flag.String("only", "", "measure only the rows with these IDs, comma-separated")
	out := flag.String("out", filepath.Join("results", time.Now().UTC().Format("20060102T150405Z")+"_store"), "directory of the result")
	flag.Parse()
	if l.quick && !given("repeat") {
		l.repeat = 1
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	r, err := l.measure(ctx, *only, *out)
	switch {
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(exitUsage)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(exitMissed)
	case !r.passed() || !r.Complete:
		os.Exit(exitMissed)
	}
}

// given reports whether a flag is set on the command line.
func given(name string) (found bool) {
	flag.Visit(func(f *flag.Flag) { found = found || f.Name == name })
	return found
}

// measure measures the rows and writes the result.
func (l *lab) measure(ctx context.Context, only, out string) (result, error) {
	if l.repeat < 1 || flag.NArg() > 0 {
		return result{}, fmt.Errorf("%w: bench [flags], with -repeat at least 1; see -help", errUsage)
	}
	if err := os.MkdirAll(l.disk, 0o755); err != nil {
		return result{}, err
	}
	l.diskName = machine.FileSystem(l.disk)
	chosen, err := choose(rows(l), only)
	if err != nil {
		return result{}, err
	}
	r := result{
		Time: time.Now().UTC(), Machine: machine.This(), Versions: l.versions(ctx),
		Disk: l.diskName, Quick: l.quick, Repeat: l.repeat,
	}
	defer func() { l.largeStore().discard() }()
	for i, row := range chosen {
		fmt.Fprintf(os.Stderr, "[%d/%d] %s: %s\n", i+1, len(chosen), row.ID, row.Title)
		samples, err := l.samples(ctx, row)
		if err != nil {
			fmt.Fprintln(os.Stderr, "     ", err)
		}
		r.Rows = append(r.Rows, conclude(row, samples, err, l.judge(row)))
		r.Seconds = time.Since(r.Time).Seconds()
		r.Complete = ctx.Err() == nil && len(r.Rows) == len(chosen)
		// The result is written after each row, so that it is not lost if a later row fails.
		if err := r.save(out); err != nil {
			return r, err
		}
		if ctx.Err() != nil {
			fmt.Fprintln(os.Stderr, "interrupted; partial result:")
			break
		}
	}
	fmt.Printf("\n%s; %s\n", r.Machine, r.Disk)
	r.print(os.Stdout)
	fmt.Printf("\n%s\n", filepath.Join(out, "index.html"))
	return r, nil
}

// judge returns the function that judges the figure of a row. In a short run, the rows of the large store and
// the row overhead are not judged, because their limits apply to the full number of keys.
func (l *lab) judge(r row) func(figure float64) verdict {
	switch {
	case !l.quick:
		return r.Limits.judge
	case slices.Contains([]string{"overhead", "resident", "restart", "pause"}, r.ID):
		return func(float64) verdict { return notJudged }
	}
	return r.Limits.judgeShort
}

// choose returns the rows whose IDs are in the comma-separated list only, or all rows if it is empty.
func choose(all []row, only string) ([]row, error) {
	if only == "" {
		return all, nil
	}
	names := strings.Split(only, ",")
	var known []string
	var chosen []row
	for _, r := range all {
		known = append(known, r.ID)
		if slices.Contains(names, r.ID) {
			chosen = append(chosen, r)
		}
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("%w: unknown row %q; choose from %s", errUsage, name, strings.Join(known, ", "))
		}
	}
	return chosen, nil
}

// samples measures the stores of a row one after the other, -repeat times.
func (l *lab) samples(ctx context.Context, r row) (samples []sample, err error) {
	repeat := l.repeat
	if r.Once {
		repeat = 1
	}
	for round := range repeat {
		for _, store := range r.Stores {
			start := time.Now()
			s, err := r.Sample(ctx, l, store)
			if err != nil {
				return samples, fmt.Errorf("%s: %w", store, err)
			}
			s.Store = store
			samples = append(samples, s)
			fmt.Fprintf(os.Stderr, "      %d/%d  %-8s  %8s %s  (%.0f s)  %s\n",
				round+1, repeat, store, number.Text(s.Value), r.Unit, time.Since(start).Seconds(), s.Note)
		}
	}
	return samples, nil
}
