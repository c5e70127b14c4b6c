package realcluster

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/intake"
)

// arrival is when the scheduler first received a pod, and by which intake.
type arrival struct {
	source string
	at     time.Time
}

// Patterns of log lines of the scheduler for a pod that it receives or has bound.
var (
	// With a webhook, package intake logs new pods.
	seenLine = regexp.MustCompile(`"` + regexp.QuoteMeta(intake.QueuedMessage) + `" pod="([^"]+)" source="([a-z]+)" unixMicros=([0-9]+)`)
	// Without a webhook, upstream's event handler logs new pods.
	watchedLine = regexp.MustCompile(`^I([0-9]{4} [0-9:]{8}\.[0-9]{6}) .*"Add event for unscheduled pod" pod="([^"]+)"`)
	// Upstream's scheduling cycle logs binds.
	boundLine = regexp.MustCompile(`^I([0-9]{4} [0-9:]{8}\.[0-9]{6}) .*"Successfully bound pod to node" pod="([^"]+)"`)
)

// logReader follows the log of a scheduler. It ignores lines that were written before openLog was called.
type logReader struct {
	file   *os.File
	lines  *bufio.Reader
	rest   string // an incomplete line at the end of the log
	prefix string // of the measured pods, NAMESPACE/NAME
	seen   map[string]arrival
	bound  map[string]time.Time
}

// openLog opens the log of a scheduler. It selects the pods of a namespace whose names have a prefix.
func openLog(path, namespace, prefix string) (*logReader, error) {
	file, err := os.Open(path)
	if err == nil {
		_, err = file.Seek(0, io.SeekEnd)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the scheduler's log: %w", err)
	}
	return &logReader{
		file: file, lines: bufio.NewReader(file), prefix: namespace + "/" + prefix,
		seen: map[string]arrival{}, bound: map[string]time.Time{},
	}, nil
}

func (l *logReader) close() { _ = l.file.Close() }

// read reads the complete lines that were added to the log since the last call.
func (l *logReader) read() error {
	for {
		line, err := l.lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			// The line is not complete yet.
			l.rest += line
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the scheduler's log: %w", err)
		}
		l.addLine(l.rest + line)
		l.rest = ""
	}
}

// addLine records the event of a log line, if it is one of a measured pod.
func (l *logReader) addLine(line string) {
	if found := seenLine.FindStringSubmatch(line); found != nil {
		if micros, err := strconv.ParseInt(found[3], 10, 64); err == nil {
			l.addSeen(found[1], found[2], time.UnixMicro(micros))
		}
	} else if found := watchedLine.FindStringSubmatch(line); found != nil {
		if at, err := parseLogTime(found[1], time.Now()); err == nil {
			l.addSeen(found[2], clusterdir.IntakeWatch, at)
		}
	} else if found := boundLine.FindStringSubmatch(line); found != nil {
		l.addBound(found[2], found[1])
	}
}

func (l *logReader) addSeen(pod, source string, at time.Time) {
	name, ok := l.nameOf(pod)
	if _, known := l.seen[name]; ok && !known {
		l.seen[name] = arrival{source, at}
	}
}

func (l *logReader) addBound(pod, at string) {
	when, err := parseLogTime(at, time.Now())
	if name, ok := l.nameOf(pod); ok && err == nil {
		l.bound[name] = when
	}
}

// nameOf returns the name of a pod that the log identifies as NAMESPACE/NAME. ok reports that the pod is
// measured.
func (l *logReader) nameOf(pod string) (name string, ok bool) {
	_, name, _ = strings.Cut(pod, "/")
	return name, strings.HasPrefix(pod, l.prefix)
}

// parseLogTime parses the time of a log line. klog omits the year, so it returns the latest such time that
// is at most a day after now.
func parseLogTime(at string, now time.Time) (time.Time, error) {
	when, err := time.ParseInLocation("0102 15:04:05.000000", at, now.Location())
	if err != nil {
		return time.Time{}, err
	}
	when = when.AddDate(now.Year(), 0, 0)
	if when.After(now.AddDate(0, 0, 1)) {
		when = when.AddDate(-1, 0, 0)
	}
	return when, nil
}
