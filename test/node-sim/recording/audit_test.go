package recording

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

// policy is an audit policy that logs each request once: those of watches when they begin, all others when they end.
const policy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

// maxLine is the length of the longest line of an audit log that is read, in bytes.
const maxLine = 1 << 20

// request is a request in an audit log.
type request struct {
	sender sender
	at     time.Time
	// row is the verb and the resource, with the subresource, such as "patch pods/status".
	row string
}

// sender is a program that sends the requests of nodes.
type sender int

// The programs. kubelet is a hollow kubelet. wire and shared are node-sim in these modes.
const (
	kubelet sender = iota
	wire
	shared
	other
)

// entry is a line of an audit log.
type entry struct {
	Stage, Verb, RequestURI, UserAgent string
	User                               struct{ Username string }
	ObjectRef                          *struct{ Resource, Subresource string }
	RequestReceivedTimestamp           time.Time
}

// readAudit returns the requests in an audit log of hollow kubelets and of node-sim.
func readAudit(path string) ([]request, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var requests []request
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var e entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("line %d of the audit log: %w", len(requests)+1, err)
		}
		if from := e.sender(); from != other && e.isCounted() {
			requests = append(requests, request{sender: from, at: e.RequestReceivedTimestamp, row: e.row()})
		}
	}
	return requests, lines.Err()
}

// sender returns who has sent the request. In mode wire, node-sim acts as each node.
func (e *entry) sender() sender {
	switch isNode := strings.HasPrefix(e.User.Username, "system:node:"); {
	case strings.HasPrefix(e.UserAgent, "hollow-kubelet"):
		return kubelet
	case strings.HasPrefix(e.UserAgent, "node-sim/") && isNode:
		return wire
	case strings.HasPrefix(e.UserAgent, "node-sim/"):
		return shared
	}
	return other
}

// isCounted reports whether the stage is the one in which a request is counted.
func (e *entry) isCounted() bool {
	if e.Verb == "watch" {
		return e.Stage == "ResponseStarted"
	}
	return e.Stage == "ResponseComplete"
}

func (e *entry) row() string {
	if e.ObjectRef == nil {
		path, _, _ := strings.Cut(e.RequestURI, "?")
		return e.Verb + " " + path
	}
	row := e.Verb + " " + e.ObjectRef.Resource
	if e.ObjectRef.Subresource != "" {
		row += "/" + e.ObjectRef.Subresource
	}
	return row
}
