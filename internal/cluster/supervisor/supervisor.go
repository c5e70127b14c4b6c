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
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/thejerf/suture/v4"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

const (
	// Each exit of a component adds 1 to a count, which halves every failureDecay seconds. While the
	// count is at most immediateRestarts, the component is restarted immediately; above that, after
	// restartBackoff.
	immediateRestarts = 2
	failureDecay      = 60
	restartBackoff    = 3 * time.Second
	stopTimeout       = component.MaxStopGrace + 5*time.Second
	// detachByte is the byte that Detach writes to the pipe.
	detachByte byte = '+'
)

// errAbandoned is the reason to stop if the `k1m up` process that started the supervisor exited without
// calling Detach.
var errAbandoned = errors.New("k1m up exited before the cluster was ready")

// Options are the options of [Run].
type Options struct {
	Dir        clusterdir.Dir
	Components []component.Component // each after its dependencies
	Address    string                // host:port that serves /healthz and /metrics
	// BeforeStart and AfterReady are hooks, by component name. BeforeStart runs before each
	// start of the component. AfterReady runs when the readiness probe of a component that is not
	// ready succeeds; the component becomes ready when the hook succeeds too.
	BeforeStart, AfterReady map[string]func(context.Context) error
	// ParentPipe is the read end of a pipe from `k1m up`. The byte that [Detach] writes lets the
	// supervisor keep running after `k1m up` exits. End of file before that byte stops the cluster.
	ParentPipe io.ReadCloser
	// Handlers serve further paths at Address.
	Handlers map[string]http.Handler
	Log      *slog.Logger
}

// Run keeps the components running until ctx is done, or until `k1m up` exits without having called
// [Detach]. Then it stops them in reverse order of their dependencies and removes the state file.
func Run(ctx context.Context, o Options) error {
	self, err := process.Of(os.Getpid())
	if err != nil {
		return err
	}
	stateFile := newStateFile(o.Dir.StateFile(), o.Log, State{Supervisor: self, Address: "http://" + o.Address, StartedAt: time.Now()}, o.Components)
	stateFile.change(func(*State) {}) // writes the initial state

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go watchParent(o.ParentPipe, cancel)
	stopServing, err := serve(o.Address, stateFile, o.Handlers)
	if err != nil {
		return err
	}
	defer stopServing()

	// The children do not use ctx, because they must stop in order and not all at the same time.
	treeContext, stopTree := context.WithCancel(context.Background())
	defer stopTree()
	root := suture.New("k1m", spec(o.Log))
	finished := root.ServeBackground(treeContext)
	levels := addChildren(root, o, stateFile)

	<-ctx.Done()
	o.Log.Info("stopping the components", "reason", context.Cause(ctx))
	stateFile.change(func(s *State) { s.Stopping = true })
	err = stopInOrder(root, levels)
	stopTree()
	<-finished
	return errors.Join(err, os.Remove(o.Dir.StateFile()))
}

// Detach tells the supervisor at the read end of the pipe to keep running after this process exits, and
// closes the pipe.
func Detach(parentPipe io.WriteCloser) error {
	_, err := parentPipe.Write([]byte{detachByte})
	return errors.Join(err, parentPipe.Close())
}

// watchParent stops the supervisor with errAbandoned if the pipe is closed before the detach byte
// arrives.
func watchParent(parentPipe io.ReadCloser, stop context.CancelCauseFunc) {
	defer parentPipe.Close()
	var received [1]byte
	if _, err := io.ReadFull(parentPipe, received[:]); err != nil || received[0] != detachByte {
		stop(errAbandoned)
	}
}

// spec returns the restart policy of a suture supervisor.
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

// addChildren starts every component under its own suture supervisor, so that the restart delay of one
// component does not affect another. It returns the supervisors by level: a component depends only on
// components of lower levels.
func addChildren(root *suture.Supervisor, o Options, stateFile *stateFile) [][]suture.ServiceToken {
	children := map[string]*child{}
	levelOf := map[string]int{}
	var levels [][]suture.ServiceToken
	for _, c := range o.Components {
		added := newChild(c, o, stateFile)
		for _, name := range c.DependsOn {
			added.dependencies = append(added.dependencies, children[name])
			levelOf[c.Name] = max(levelOf[c.Name], levelOf[name]+1)
		}
		children[c.Name] = added
		supervisor := suture.New(c.Name, spec(o.Log))
		supervisor.Add(added)
		level := levelOf[c.Name]
		for len(levels) <= level {
			levels = append(levels, nil)
		}
		levels[level] = append(levels[level], root.Add(supervisor))
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

// stopInOrder stops the levels from the highest to the lowest. If the store stopped before the API
// servers, they would wait for it instead of exiting.
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
		return fmt.Errorf("stopping the components: %w", err)
	}
	return nil
}
