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

// sighting is the time and the intake by which the scheduler first saw a pod.
type sighting struct {
	source string
	at     time.Time
}

// Log lines of the scheduler for a pod that it sees and, from upstream, for a pod that it has
// bound.
var (
	seenLine = regexp.MustCompile(`"` + regexp.QuoteMeta(intake.SeenMessage) + `" pod="([^"]+)" source="([a-z]+)" unixMicros=([0-9]+)`)
	// Without a webhook the upstream event handler logs new pods.
	watchedLine = regexp.MustCompile(`^I([0-9]{4} [0-9:]{8}\.[0-9]{6}) .*"Add event for unscheduled pod" pod="([^"]+)"`)
	boundLine   = regexp.MustCompile(`^I([0-9]{4} [0-9:]{8}\.[0-9]{6}) .*"Successfully bound pod to node" pod="([^"]+)"`)
)

// sightings follows the log of a scheduler. It ignores lines that were written before it was opened.
type sightings struct {
	file   *os.File
	lines  *bufio.Reader
	rest   string
	prefix string
	seen   map[string]sighting
	bound  map[string]time.Time
}

// openSightings selects pods of a namespace whose names have a prefix.
func openSightings(path, namespace, prefix string) (*sightings, error) {
	file, err := os.Open(path)
	if err == nil {
		_, err = file.Seek(0, io.SeekEnd)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the scheduler's log: %w", err)
	}
	return &sightings{
		file: file, lines: bufio.NewReader(file), prefix: namespace + "/" + prefix,
		seen: map[string]sighting{}, bound: map[string]time.Time{},
	}, nil
}

func (s *sightings) close() { _ = s.file.Close() }

// read reads the lines that were added to the log.
func (s *sightings) read() error {
	for {
		line, err := s.lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			// The line is not complete yet.
			s.rest += line
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the scheduler's log: %w", err)
		}
		s.note(s.rest + line)
		s.rest = ""
	}
}

func (s *sightings) note(line string) {
	if found := seenLine.FindStringSubmatch(line); found != nil {
		if micros, err := strconv.ParseInt(found[3], 10, 64); err == nil {
			s.noteSeen(found[1], found[2], time.UnixMicro(micros))
		}
	} else if found := watchedLine.FindStringSubmatch(line); found != nil {
		if at, err := stamp(found[1], time.Now()); err == nil {
			s.noteSeen(found[2], clusterdir.IntakeWatch, at)
		}
	} else if found := boundLine.FindStringSubmatch(line); found != nil {
		s.noteBound(found[2], found[1])
	}
}

func (s *sightings) noteSeen(pod, source string, at time.Time) {
	name, ok := s.nameOf(pod)
	if _, again := s.seen[name]; ok && !again {
		s.seen[name] = sighting{source, at}
	}
}

func (s *sightings) noteBound(pod, at string) {
	when, err := stamp(at, time.Now())
	if name, ok := s.nameOf(pod); ok && err == nil {
		s.bound[name] = when
	}
}

// nameOf returns the name of a measured pod, or "".
func (s *sightings) nameOf(pod string) (name string, ok bool) {
	_, name, _ = strings.Cut(pod, "/")
	return name, strings.HasPrefix(pod, s.prefix)
}

// stamp parses the time of a log line. klog omits the year.
func stamp(at string, now time.Time) (time.Time, error) {
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
