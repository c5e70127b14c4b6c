// Package nodesim injects faults into the nodes that node-sim simulates.
package nodesim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const (
	requestTimeout = 30 * time.Second
	// maxAnswerBytes is the largest answer that is read. Answers are short.
	maxAnswerBytes = 64 << 10
)

// Fault is what happens to nodes.
type Fault string

// Faults. [Stop] means no heartbeats, no status and no changes of pods, as if the machine had lost its power; a node
// with a connection of its own closes it. [Flap] stops and starts nodes in turn. [Slow] delays everything that nodes do. [Start]
// ends all faults.
const (
	Stop  Fault = "stop"
	Start Fault = "start"
	Flap  Fault = "flap"
	Slow  Fault = "slow"
)

// Request selects nodes, and has the parameters of the fault. The fields that select nodes are combined; without them,
// All must be set. Durations are texts such as 15s, and empty for the defaults.
type Request struct {
	All bool `json:"all,omitempty"`
	// Count chooses so many of the selected nodes at random.
	Count    int      `json:"count,omitempty"`
	Zone     string   `json:"zone,omitempty"`
	Selector string   `json:"selector,omitempty"`
	Names    []string `json:"names,omitempty"`

	// Down and Up are the times of Flap, Delay is that of Slow.
	Down  string `json:"down,omitempty"`
	Up    string `json:"up,omitempty"`
	Delay string `json:"delay,omitempty"`
}

// InjectAll injects a fault into the nodes of several node-sim processes, which have different nodes. addresses are those
// of their pages. A count is divided among them. It returns the number of nodes that it concerns.
func InjectAll(ctx context.Context, addresses []string, fault Fault, request Request) (nodes int, err error) {
	for i, address := range addresses {
		part := request
		if request.Count > 0 {
			if part.Count = share(request.Count, i, len(addresses)); part.Count == 0 {
				continue
			}
		}
		count, err := Inject(ctx, address, fault, part)
		if err != nil {
			return nodes, err
		}
		nodes += count
	}
	return nodes, nil
}

// share returns the i-th of equal parts of a number. The first parts are larger by 1 if it cannot be divided.
func share(count, i, parts int) int { return (count + parts - 1 - i) / parts }

// Inject injects a fault into nodes. address is the host:port of node-sim's pages. It returns the number of nodes that it
// concerns. The error has node-sim's reason if it rejects the request.
func Inject(ctx context.Context, address string, fault Fault, request Request) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	body, err := json.Marshal(request)
	if err != nil {
		return 0, err
	}
	url := fmt.Sprintf("http://%s/nodes/%s", address, fault)
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(post)
	if err != nil {
		return 0, fmt.Errorf("calling node-sim: %w", err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
	if err != nil {
		return 0, fmt.Errorf("reading node-sim's answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("node-sim: %s", strings.TrimSpace(string(answer)))
	}
	var result struct{ Nodes int }
	if err := json.Unmarshal(answer, &result); err != nil {
		return 0, fmt.Errorf("reading node-sim's answer: %w", err)
	}
	return result.Nodes, nil
}
