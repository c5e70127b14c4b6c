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
	// StoreError is the last error in a store's log since the cluster was started, or empty. It is
	// often the reason why another component has failed.
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
		StoreError: anyStoreError(dir, state),
	}
}

// anyStoreError returns the last error of the first store that has one.
func anyStoreError(dir clusterdir.Dir, state supervisor.State) string {
	for _, c := range state.Components {
		if !clusterdir.IsStore(c.Name) {
			continue
		}
		if line := lastStoreError(lastLines(dir.Log(c.Name)), state.StartedAt); line != "" {
			return line
		}
	}
	return ""
}

// lastStoreError returns the last line that is an error in the log format of mem_etcd. It ignores errors
// before since, because the log also contains earlier runs of the cluster.
func lastStoreError(lines []string, since time.Time) string {
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

// lastLines returns the last lines of a file, up to logTailBytes; none if the file cannot be read.
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

// addRemedy adds a remedy to the text of file system errors.
func addRemedy(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w; free some space, or set K1M_HOME to another disk", err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w; change the permissions, or set K1M_HOME to a writable directory", err)
	}
	return err
}
