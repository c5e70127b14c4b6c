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

	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

// A log that has grown past this is put aside when its component starts.
const maxLogBytes = 64 << 20

// child keeps one component's process; suture calls Serve again when it returns.
type child struct {
	component.Component
	logFile                 string
	dependencies            []*child
	beforeStart, afterReady func(context.Context) error // nil for most
	recorder                *recorder
	log                     *slog.Logger

	readyOnce sync.Once
	wasReady  chan struct{} // closed when ready for the first time
}

// Serve runs the process once, from start to end.
func (c *child) Serve(ctx context.Context) error {
	if err := c.awaitDependencies(ctx); err != nil {
		return err
	}
	if c.beforeStart != nil {
		if err := c.beforeStart(ctx); err != nil {
			c.log.Warn("preparing the start", "component", c.Name, "error", err)
		}
	}
	// The kernel kills the process when the thread that started it ends, so
	// this thread must live, and serve nothing else, until the process is gone.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	cmd, err := c.start(ctx)
	if err != nil {
		c.recorder.ended(c.Name, err.Error(), false)
		return err
	}
	probing, stopProbing := context.WithCancel(ctx)
	go c.probe(probing)
	err = cmd.Wait()
	stopProbing()

	asked := ctx.Err() != nil
	how := cmd.ProcessState.String()
	c.log.Info("process ended", "component", c.Name, "how", how, "asked", asked)
	c.recorder.ended(c.Name, how, asked)
	if asked {
		return ctx.Err()
	}
	if c.Volatile {
		c.startOver()
	}
	return fmt.Errorf("%s ended: %s (%w)", c.Name, how, err)
}

// startOver kills the other components: what they have cached is no longer so.
func (c *child) startOver() {
	for _, other := range c.recorder.snapshot().Components {
		if err := other.Process.KillGroup(); err == nil {
			c.log.Warn("killed, as the state is lost", "component", other.Name)
		}
	}
}

func (c *child) String() string { return c.Name }

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

func (c *child) start(ctx context.Context) (*exec.Cmd, error) {
	log, err := openLog(c.logFile)
	if err != nil {
		return nil, err
	}
	defer log.Close()

	program, args := c.Command()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = c.StopGrace
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.Name, err)
	}
	id, err := process.Of(cmd.Process.Pid)
	if err != nil {
		// It has ended already; Wait tells how.
		id = process.Identity{PID: cmd.Process.Pid}
	}
	c.log.Info("process started", "component", c.Name, "pid", id.PID, "args", args)
	c.recorder.started(c.Name, id)
	return cmd, nil
}

// probe keeps the recorded readiness true until ctx ends.
func (c *child) probe(ctx context.Context) {
	prober, err := newProber(c.Ready)
	if err != nil {
		c.recorder.notReady(c.Name, err.Error())
		return
	}
	interval, misses, ready := probeUntilReady, 0, false
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(interval):
		}
		err := prober.ask(ctx)
		if err == nil && !ready && c.afterReady != nil {
			err = c.afterReady(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && !ready:
			ready, misses, interval = true, 0, probeWhenReady
			c.becameReady()
		case err == nil:
			misses = 0
		default:
			misses++
			if !ready || misses >= missesBeforeNotReady {
				ready, interval = false, probeUntilReady
				c.recorder.notReady(c.Name, err.Error())
			}
		}
	}
}

func (c *child) becameReady() {
	c.readyOnce.Do(func() { close(c.wasReady) })
	c.log.Info("ready", "component", c.Name)
	c.recorder.ready(c.Name)
}

func openLog(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > maxLogBytes {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("putting the log aside: %w", err)
		}
	}
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}
