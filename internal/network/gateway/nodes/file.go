package nodes

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/registry"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/reload"
)

// fileNode is a node in a file.
type fileNode struct {
	Name     string   `json:"name"`
	Prefixes []string `json:"prefixes"`
}

// Parse reads a list of nodes in YAML or JSON: objects with the fields name and prefixes.
func Parse(data []byte) ([]registry.Node, error) {
	var entries []fileNode
	if err := yaml.UnmarshalStrict(data, &entries); err != nil {
		return nil, err
	}
	parsed := make([]registry.Node, 0, len(entries))
	seen := map[string]bool{}
	for i, entry := range entries {
		if entry.Name == "" || seen[entry.Name] {
			return nil, fmt.Errorf("entry %d: name %q is empty or is used twice", i+1, entry.Name)
		}
		seen[entry.Name] = true
		node := registry.Node{Name: entry.Name}
		for _, text := range entry.Prefixes {
			prefix, err := netip.ParsePrefix(text)
			if err != nil || !prefix.Addr().Is6() {
				return nil, fmt.Errorf("node %s: %q is not an IPv6 prefix such as 2001:db8::/96", entry.Name, text)
			}
			node.Prefixes = append(node.Prefixes, prefix.Masked())
		}
		parsed = append(parsed, node)
	}
	return parsed, nil
}

// FromFile gives the nodes of a file to a sink, and changes of the file within the interval, until the
// context ends. An error of the first read is returned; later ones are logged, and the nodes stay.
func FromFile(ctx context.Context, path string, interval time.Duration, sink Sink, log *slog.Logger) error {
	content, err := apply(path, nil, sink, log)
	if err != nil {
		return err
	}
	read := func() error {
		next, err := apply(path, content, sink, log)
		if err == nil {
			content = next
		}
		return err
	}
	reload.Every(ctx, interval, read, func(err error) {
		log.Error("nodes file cannot be used; the former nodes stay", "err", err)
	})
	return nil
}

func apply(path string, former []byte, sink Sink, log *slog.Logger) ([]byte, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("nodes file: %w", err)
	}
	if former != nil && bytes.Equal(content, former) {
		return former, nil
	}
	list, err := Parse(content)
	if err != nil {
		return nil, fmt.Errorf("nodes file %s: %w", path, err)
	}
	names := map[string]bool{}
	for _, node := range list {
		names[node.Name] = true
	}
	keep(sink, func(name string) bool { return names[name] })
	for _, node := range list {
		set(sink, node, log)
	}
	return content, nil
}
