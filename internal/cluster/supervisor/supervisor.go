// Package supervisor keeps the components of a cluster running. The supervisor process is the
// parent of all component processes: it starts them in the order of their dependencies,
// restarts those that exit, and stops them in reverse order. If it is killed, the kernel kills
// the components (PDEATHSIG).
//
// [Run] is the supervisor. It publishes a [State] in a file that other k1m processes read with
// [ReadState], and serves /healthz and /metrics.
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
	// After the first few exits within a minute, a component is restarted immediately. After further
	// exits it is restarted with a delay.
	immediateRestarts      = 2
	failureDecay           = 60 // half-life of the exit count, in seconds
	restartBackoff         = 3 * time.Second
	stopTimeout            = component.MaxStopGrace + 5*time.Second
	detachByte        byte = '+'
)

// errAbandoned means that the `k1m up` process that started the supervisor exited without
// calling Detach.
var errAbandoned = errors.New("k1m up exited before the cluster was ready")

// Options are the options of [Run].
type Options struct {
	Dir        clusterdir.Dir
	Components []component.Component // each after its dependencies
	Address    string                // host:port that serves /healthz and /metrics
	// BeforeStart and AfterReady are hooks, by component name. BeforeStart runs before each
	// start of the component. AfterReady runs each time the readiness probe succeeds after it
	// had failed; the component becomes ready when the hook succeeds.
	BeforeStart, AfterReady map[string]func(context.Context) error
	// ParentPipe is the read end of a pipe from `k1m up`. One byte detaches the supervisor, which
	// then keeps running after `k1m up` exits. End of file before that stops the cluster.
	ParentPipe io.ReadCloser
	Log        *slog.Logger
}

// Run keeps the components running until ctx is done or `k1m up` has died, then stops them in
// reverse order of their dependencies and removes the state file.
func Run(ctx context.Context, o Options) error {
	self, err := process.Of(os.Getpid())
	if err != nil {
		return err
	}
	stateFile := newStateFile(o.Dir.StateFile(), o.Log, State{Supervisor: self, Address: "http://" + o.Address, StartedAt: time.Now()}, o.Components)
	stateFile.change(func(*State) {})

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go watchParent(o.ParentPipe, cancel)
	stopServing, err := serve(o.Address, stateFile)
	if err != nil {
		return err
	}
	defer stopServing()

	tree, stopTree := context.WithCancel(context.Background())
	defer stopTree()
	root := suture.New("k1m", spec(o.Log))
	finished := root.ServeBackground(tree)
	levels := addChildren(root, o, stateFile)

	<-ctx.Done()
	o.Log.Info("stopping", "reason", context.Cause(ctx))
	stateFile.change(func(s *State) { s.Stopping = true })
	err = stopInOrder(root, levels)
	stopTree()
	<-finished
	return errors.Join(err, os.Remove(o.Dir.StateFile()))
}

// Detach signals the supervisor at the other end of the pipe to keep running after this process exits,
// and closes the pipe.
func Detach(parentPipe io.WriteCloser) error {
	_, err := parentPipe.Write([]byte{detachByte})
	return errors.Join(err, parentPipe.Close())
}

// watchParent abandons the supervisor if the pipe is closed before the detach byte arrives.
func watchParent(parentPipe io.ReadCloser, abandon context.CancelCauseFunc) {
	defer parentPipe.Close()
	var received [1]byte
	if _, err := io.ReadFull(parentPipe, received[:]); err != nil || received[0] != detachByte {
		abandon(errAbandoned)
	}
}

func spec(log *slog.Logger) suture.Spec {
	return suture.Spec{
		EventHook: func(event suture.Event) {
			log.Warn("suture event", "event", event.String())
		},
		FailureThreshold: immediateRestarts,
		FailureDecay:     failureDecay,
		FailureBackoff:   restartBackoff,
		Timeout:          stopTimeout,
	}
}

// addChildren starts every component under a suture supervisor of its own, so that the
// restart delay of one does not affect another. It returns the components by level: components depend
// only on components of lower levels.
func addChildren(root *suture.Supervisor, o Options, stateFile *stateFile) [][]suture.ServiceToken {
	children := map[string]*child{}
	depth := map[string]int{}
	var levels [][]suture.ServiceToken
	for _, c := range o.Components {
		member := newChild(c, o, stateFile)
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

func newChild(c component.Component, o Options, stateFile *stateFile) *child {
	return &child{
		Component:   c,
		logFile:     o.Dir.Log(c.Name),
		beforeStart: o.BeforeStart[c.Name],
		afterReady:  o.AfterReady[c.Name],
		stateFile:   stateFile,
		log:         o.Log,
		wasReady:    make(chan struct{}),
	}
}

// stopInOrder stops each level after the levels that depend on it. If the store stopped first,
// API servers would wait for it instead of exiting.
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
