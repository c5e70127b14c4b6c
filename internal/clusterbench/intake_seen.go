package clusterbench

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

	"github.com/k8s-1m/k8s-1m/internal/scheduler"
)

// sighting is when the scheduler saw a pod first, and by what.
type sighting struct {
	source string
	at     time.Time
}

// sightings follows a scheduler's log from where it ended when it was opened.
type sightings struct {
	file   *os.File
	lines  *bufio.Reader
	rest   string
	prefix string
	seen   map[string]sighting
}

var seenLine = regexp.MustCompile(`"` + regexp.QuoteMeta(scheduler.SeenMessage) + `" pod="([^"]+)" source="([a-z]+)" unixMicros=([0-9]+)`)

// openSightings looks for pods of a namespace whose names have a prefix.
func openSightings(path, namespace, prefix string) (*sightings, error) {
	file, err := os.Open(path)
	if err == nil {
		_, err = file.Seek(0, io.SeekEnd)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the scheduler's log: %w", err)
	}
	return &sightings{
		file: file, lines: bufio.NewReader(file), prefix: namespace + "/" + prefix, seen: map[string]sighting{},
	}, nil
}

func (s *sightings) close() { _ = s.file.Close() }

// read takes in what the log has got since.
func (s *sightings) read() error {
	for {
		line, err := s.lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			// The end of the line is still to come.
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
	found := seenLine.FindStringSubmatch(line)
	if found == nil || !strings.HasPrefix(found[1], s.prefix) {
		return
	}
	_, name, _ := strings.Cut(found[1], "/")
	micros, err := strconv.ParseInt(found[3], 10, 64)
	if _, again := s.seen[name]; again || err != nil {
		return
	}
	s.seen[name] = sighting{found[2], time.UnixMicro(micros)}
}
