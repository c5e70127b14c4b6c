package supervisor

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

// When a component starts and its log is larger than maxLogBytes, the log is rotated.
const maxLogBytes = 64 << 20

// child runs the process of one component. When Serve returns, suture calls it again.
type child struct {
	component.Component
	logFile                 string
	dependencies            []*child
	beforeStart, afterReady func(context.Context) error // hooks; nil for most components
	stateFile               *stateFile
	log                     *slog.Logger

	readyOnce sync.Once
	wasReady  chan struct{} // closed when the component is ready for the first time
}

// Serve waits for the dependencies, starts the process, and waits until it exits.
func (c *child) Serve(ctx context.Context) error {
	if err := c.awaitDependencies(ctx); err != nil {
		return err
	}
	if c.beforeStart != nil {
		if err := c.beforeStart(ctx); err != nil {
			c.log.Warn("hook before the start failed; starting the component without it", "component", c.Name, "error", err)
		}
	}
	// The kernel kills the process when the thread that started it exits (PDEATHSIG). This
	// goroutine must therefore keep its thread until the process has exited.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	cmd, err := c.start(ctx)
	if err != nil {
		c.stateFile.exited(c.Name, err.Error(), false)
		return err
	}
	probeContext, stopProbing := context.WithCancel(ctx)
	go c.probe(probeContext)
	err = cmd.Wait()
	stopProbing()

	requested := ctx.Err() != nil
	exit := cmd.ProcessState.String()
	c.log.Info("process exited", "component", c.Name, "exit", exit, "requested", requested)
	c.stateFile.exited(c.Name, exit, requested)
	if requested {
		return ctx.Err()
	}
	if c.Volatile {
		c.killOtherComponents()
	}
	return fmt.Errorf("%s exited: %s (%w)", c.Name, exit, err)
}

// killOtherComponents kills all other components, and suture restarts them. Their caches are invalid,
// because the store lost its state when it exited. Other stores have no such caches, and would lose their state too.
func (c *child) killOtherComponents() {
	for _, other := range c.stateFile.snapshot().Components {
		if clusterdir.IsStore(other.Name) {
			continue
		}
		if err := other.Process.KillGroup(); err == nil {
			c.log.Warn("killed component because the store lost its state", "component", other.Name, "store", c.Name)
		}
	}
}

// String returns the name that suture uses in events.
func (c *child) String() string { return c.Name }

// awaitDependencies waits until each dependency has been ready once.
func (c *child) awaitDependencies(ctx context.Context) error {
	for _, dependency := range c.dependencies {
		select {
		case <-dependency.wasReady:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Process returns the process of a component, which writes its output to log. When ctx is done, the process
// receives SIGTERM, and SIGKILL after StopGrace. The kernel kills it when the thread that started it exits.
func Process(ctx context.Context, c component.Component, log *os.File) *exec.Cmd {
	program, args := c.Command()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = c.StopGrace
	return cmd
}

// start starts the process, as [Process] describes it.
func (c *child) start(ctx context.Context) (*exec.Cmd, error) {
	log, err := openLog(c.logFile)
	if err != nil {
		return nil, err
	}
	defer log.Close()

	cmd := Process(ctx, c.Component, log)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.Name, err)
	}
	id, err := process.Of(cmd.Process.Pid)
	if err != nil {
		// The process has already exited. Wait returns the reason.
		id = process.Identity{PID: cmd.Process.Pid}
	}
	c.log.Info("process started", "component", c.Name, "pid", id.PID, "args", cmd.Args[1:])
	c.stateFile.started(c.Name, id)
	return cmd, nil
}

// probe calls the readiness probe periodically and records whether the component is ready, until ctx is
// done. A component becomes ready when the probe and then the hook afterReady succeed.
func (c *child) probe(ctx context.Context) {
	prober, err := newProber(c.Ready)
	if err != nil {
		c.stateFile.notReady(c.Name, err.Error())
		return
	}
	interval, failures, ready := probeIntervalUntilReady, 0, false
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(interval):
		}
		err := prober.probe(ctx)
		if err == nil && !ready && c.afterReady != nil {
			err = c.afterReady(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && !ready:
			ready, failures, interval = true, 0, probeIntervalWhenReady
			c.recordReady()
		case err == nil:
			failures = 0
		default:
			failures++
			if !ready || failures >= failureThreshold {
				ready, interval = false, probeIntervalUntilReady
				c.stateFile.notReady(c.Name, err.Error())
			}
		}
	}
}

func (c *child) recordReady() {
	c.readyOnce.Do(func() { close(c.wasReady) })
	c.log.Info("component is ready", "component", c.Name)
	c.stateFile.ready(c.Name)
}

// openLog opens a log for appending. It first renames a log that is too large.
func openLog(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > maxLogBytes {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("rotating the log: %w", err)
		}
	}
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}
