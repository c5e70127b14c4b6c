package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/k8s-1m/k8s-1m/internal/util/atomicfile"
)

// state is what the agent keeps over restarts.
type state struct {
	Node string `json:"node"`
	// Claimed is the prefix of the claim; Pods is the /96 in it.
	Claimed netip.Prefix `json:"claimed"`
	Pods    netip.Prefix `json:"pods"`
	// Earlier are claims of this node that it has not given back yet.
	Earlier []held `json:"earlier,omitempty"`
}

// held is a claim under the name that the node had.
type held struct {
	Node   string       `json:"node"`
	Prefix netip.Prefix `json:"prefix"`
}

// claims returns all claims that the node has.
func (s state) claims() []held {
	all := slices.Clone(s.Earlier)
	if s.Claimed.IsValid() {
		all = append(all, held{s.Node, s.Claimed})
	}
	return all
}

// readState returns an empty state if there is no file.
func readState(path string) (s state, err error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &s)
	}
	if err != nil {
		return state{}, fmt.Errorf("state %s: %w; remove the file if the node is new", path, err)
	}
	return s, nil
}

// write replaces the file as a whole. A prefix that is forgotten in a power loss would never be given back.
func (s state) write(path string) error {
	content, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("create the directory of the state: %w", err)
	}
	if err := atomicfile.WriteSync(path, append(content, '\n'), 0o600); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}
