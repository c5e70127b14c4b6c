package lifecycle

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

const (
	logTailLines = 15
	logTailBytes = 64 << 10
)

// ComponentError means that a component did not become ready. It wraps ErrNotReady.
type ComponentError struct {
	Component string
	Reason    string
	LogFile   string
	LogTail   []string // last lines of LogFile
	// StoreError is the last error in the store's log, which is often the cause of another
	// component's failure. It is empty if there is none since the cluster was started.
	StoreError string
}

func (e *ComponentError) Error() string {
	return fmt.Sprintf("%s is not ready: %s; its log is %s", e.Component, e.Reason, e.LogFile)
}

func (e *ComponentError) Unwrap() error { return ErrNotReady }

// failComponent marks the progress task of a component as failed and returns a ComponentError.
func failComponent(dir clusterdir.Dir, state supervisor.State, c supervisor.ComponentState, tasks map[string]progress.Task, reason string) error {
	if task := tasks[c.Name]; task != nil {
		task.Fail(reason)
	}
	lines := lastLines(dir.Log(c.Name))
	return &ComponentError{
		Component: c.Name, Reason: reason, LogFile: dir.Log(c.Name),
		LogTail:    lines[max(0, len(lines)-logTailLines):],
		StoreError: lastError(lastLines(dir.Log(component.Store)), state.StartedAt),
	}
}

// lastError returns the last line in mem_etcd's log format that is an error. It ignores errors
// before since, because a log contains earlier runs of the cluster.
func lastError(lines []string, since time.Time) string {
	for _, line := range slices.Backward(lines) {
		var entry struct {
			Timestamp time.Time
			Level     string
		}
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Level == "ERROR" && !entry.Timestamp.Before(since) {
			return line
		}
	}
	return ""
}

// lastLines returns the last lines of a file; none if it cannot be read.
func lastLines(path string) []string {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil
	}
	end := make([]byte, min(info.Size(), logTailBytes))
	n, _ := file.ReadAt(end, info.Size()-int64(len(end)))
	return strings.Split(strings.TrimSpace(string(end[:n])), "\n")
}

// withRemedy adds the remedy to file system errors.
func withRemedy(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w; free some space, or set K1M_HOME to another disk", err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w; change the permissions, or set K1M_HOME to a writable directory", err)
	}
	return err
}
