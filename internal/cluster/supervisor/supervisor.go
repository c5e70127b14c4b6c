// Package supervisor keeps a cluster's components running. It is the parent of
// all of them: when it is killed the kernel kills them, and when one of them
// dies it starts it again.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/thejerf/suture/v4"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

const (
	// The first deaths within a minute are answered at once, further ones after
	// a pause, each component for itself.
	immediateRestarts      = 2
	failureDecay           = 60 // seconds in which the count of deaths halves
	restartBackoff         = 3 * time.Second
	stopTimeout            = component.MaxStopGrace + 5*time.Second
	leashCommit       byte = '+'
)

// errAbandoned says that the `up` that started us went away before it was done.
var errAbandoned = errors.New("k1m up ended before the cluster was ready")

// Options of one run.
type Options struct {
	Dir        clusterdir.Dir
	Components []component.Component // each after its dependencies
	Address    string                // for /healthz and /metrics
	// BeforeStart and AfterReady run, by name of component, before each start
	// and whenever it gets ready; its dependents wait for that.
	BeforeStart, AfterReady map[string]func(context.Context) error
	// Leash is a pipe from `up`: one byte lets the supervisor run on alone,
	// its end before that tells it to stop everything.
	Leash io.ReadCloser
	Log   *slog.Logger
}

// Run keeps the components running until ctx ends, then stops them in order.
func Run(ctx context.Context, o Options) error {
	self, err := process.Of(os.Getpid())
	if err != nil {
		return err
	}
	recorder := newRecorder(o.Dir.StateFile(), o.Log, State{Supervisor: self, Address: "http://" + o.Address, StartedAt: time.Now()}, o.Components)
	recorder.change(func(*State) {})

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go holdLeash(o.Leash, cancel)
	stopServing, err := serve(o.Address, recorder)
	if err != nil {
		return err
	}
	defer stopServing()

	tree, stopTree := context.WithCancel(context.Background())
	defer stopTree()
	root := suture.New("k1m", spec(o.Log))
	finished := root.ServeBackground(tree)
	levels := addChildren(root, o, recorder)

	<-ctx.Done()
	o.Log.Info("stopping", "why", context.Cause(ctx))
	recorder.change(func(s *State) { s.Stopping = true })
	err = stopInOrder(root, levels)
	stopTree()
	<-finished
	return errors.Join(err, os.Remove(o.Dir.StateFile()))
}

// Commit lets go of the leash: the supervisor lives on without `up`.
func Commit(leash io.WriteCloser) error {
	_, err := leash.Write([]byte{leashCommit})
	return errors.Join(err, leash.Close())
}

func holdLeash(leash io.ReadCloser, abandon context.CancelCauseFunc) {
	defer leash.Close()
	var answer [1]byte
	if _, err := io.ReadFull(leash, answer[:]); err != nil || answer[0] != leashCommit {
		abandon(errAbandoned)
	}
}

func spec(log *slog.Logger) suture.Spec {
	return suture.Spec{
		EventHook: func(event suture.Event) {
			log.Warn("supervision", "event", event.String())
		},
		FailureThreshold: immediateRestarts,
		FailureDecay:     failureDecay,
		FailureBackoff:   restartBackoff,
		Timeout:          stopTimeout,
	}
}

// addChildren starts every component below its own supervisor, so that the
// backoff of one does not hold up another. It returns them by depth: those of
// one level depend only on lower ones.
func addChildren(root *suture.Supervisor, o Options, recorder *recorder) [][]suture.ServiceToken {
	children := map[string]*child{}
	depth := map[string]int{}
	var levels [][]suture.ServiceToken
	for _, c := range o.Components {
		member := newChild(c, o, recorder)
		for _, name := range c.DependsOn {
			member.dependencies = append(member.dependencies, children[name])
			depth[c.Name] = max(depth[c.Name], depth[name]+1)
		}
		children[c.Name] = member
		own := suture.New(c.Name, spec(o.Log))
		own.Add(member)
		level := depth[c.Name]
		for len(levels) <= level {
			levels = append(levels, nil)
		}
		levels[level] = append(levels[level], root.Add(own))
	}
	return levels
}

func newChild(c component.Component, o Options, recorder *recorder) *child {
	return &child{
		Component:   c,
		logFile:     o.Dir.Log(c.Name),
		beforeStart: o.BeforeStart[c.Name],
		afterReady:  o.AfterReady[c.Name],
		recorder:    recorder,
		log:         o.Log,
		wasReady:    make(chan struct{}),
	}
}

// stopInOrder stops dependents before what they depend on: an API server that
// loses its store first would wait for it instead of ending.
func stopInOrder(root *suture.Supervisor, levels [][]suture.ServiceToken) error {
	var errs []error
	for i := len(levels) - 1; i >= 0; i-- {
		var group sync.WaitGroup
		results := make([]error, len(levels[i]))
		for j, token := range levels[i] {
			group.Go(func() { results[j] = root.RemoveAndWait(token, stopTimeout) })
		}
		group.Wait()
		errs = append(errs, results...)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("stopping: %w", err)
	}
	return nil
}
