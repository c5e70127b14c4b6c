package lifecycle

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
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

// ComponentError names the component that failed, with the end of its log.
type ComponentError struct {
	Component string
	Reason    string
	LogFile   string
	LogTail   []string
	// StoreError is what the store last complained of: whoever fails, it is
	// often the cause. Empty when it did not.
	StoreError string
}

func (e *ComponentError) Error() string {
	return fmt.Sprintf("%s is not ready: %s; its log is %s", e.Component, e.Reason, e.LogFile)
}

func (e *ComponentError) Unwrap() error { return ErrNotReady }

func fail(dir clusterdir.Dir, state supervisor.State, c supervisor.ComponentState, tasks map[string]progress.Task, reason string) error {
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

// lastError finds the last line in mem_etcd's format that is an error; logs
// outlive the cluster's runs, so older ones do not count.
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

// lastLines reads the end of a file, as far as it can.
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
