// Package cni is what the network has to do with CNI: the configuration that a node gives to its container runtime, the
// results that runtimes keep (from which the agent learns the addresses of pods), and a runtime for the lab that calls the real
// plugins.
package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/k8s-1m/k8s-1m/internal/network/address"
	"github.com/k8s-1m/k8s-1m/internal/util/atomicfile"
)

const (
	// Version is the version of CNI in the configuration.
	Version = "1.0.0"
	// NetworkName is the name of the network of pods.
	NetworkName = "k1m-pods"
	// ConfigFile is the name of the configuration in the runtime's directory.
	ConfigFile = "10-k1m-pods.conflist"
	// DefaultConfigDir, DefaultResultsDir and DefaultLeasesDir are the directories of containerd, CRI-O and host-local.
	DefaultConfigDir  = "/etc/cni/net.d"
	DefaultResultsDir = "/var/lib/cni/results"
	DefaultLeasesDir  = "/var/lib/cni/networks"
)

// Config is what the configuration depends on.
type Config struct {
	// Bridge connects the pods of the node.
	Bridge string
	// Pods is the prefix of the pods, Node the address of the node, which no pod gets.
	Pods netip.Prefix
	Node netip.Addr
	// MTU of the pods' links.
	MTU int
	// LeasesDir is where host-local keeps the addresses of pods.
	LeasesDir string
}

type conflist struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Plugins    []any  `json:"plugins"`
}

type bridgePlugin struct {
	Type      string    `json:"type"`
	Bridge    string    `json:"bridge"`
	IsGateway bool      `json:"isGateway"`
	IPMasq    bool      `json:"ipMasq"`
	Hairpin   bool      `json:"hairpinMode"`
	MTU       int       `json:"mtu"`
	IPAM      hostLocal `json:"ipam"`
}

type hostLocal struct {
	Type    string            `json:"type"`
	DataDir string            `json:"dataDir"`
	Ranges  [][]addressRange  `json:"ranges"`
	Routes  []json.RawMessage `json:"routes"`
}

type addressRange struct {
	Subnet  string `json:"subnet"`
	First   string `json:"rangeStart"`
	Last    string `json:"rangeEnd"`
	Gateway string `json:"gateway"`
}

// List returns the configuration: the plugin bridge, whose bridge is the pods' gateway, with addresses of host-local. No
// masquerade: the addresses of pods are real. host-local gives addresses in turn, so one is used again only after all others of
// the range.
func (c Config) List() ([]byte, error) {
	if err := address.CheckPrefix(c.Pods, address.PodBits); err != nil {
		return nil, err
	}
	first, last := address.PodRange(c.Pods, c.Node)
	list := conflist{CNIVersion: Version, Name: NetworkName, Plugins: []any{
		bridgePlugin{
			Type: "bridge", Bridge: c.Bridge, IsGateway: true, Hairpin: true, MTU: c.MTU,
			IPAM: hostLocal{
				Type: "host-local", DataDir: c.LeasesDir,
				Ranges: [][]addressRange{{{c.Pods.String(), first.String(), last.String(), address.Gateway(c.Pods).String()}}},
				Routes: []json.RawMessage{json.RawMessage(`{"dst":"::/0"}`)},
			},
		},
	}}
	content, err := json.MarshalIndent(list, "", "  ")
	return append(content, '\n'), err
}

// Write writes the configuration into a directory, as a whole. A runtime sees the node as ready for pods when it is there.
func (c Config) Write(dir string) error {
	content, err := c.List()
	if err != nil {
		return err
	}
	path := filepath.Join(dir, ConfigFile)
	if before, err := os.ReadFile(path); err == nil && string(before) == string(content) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create the directory of CNI configurations: %w", err)
	}
	// Runtimes ignore the temporary file, because its name has another ending.
	if err := atomicfile.Write(path, content, 0o644); err != nil {
		return fmt.Errorf("write CNI configuration: %w", err)
	}
	return nil
}

// Remove removes the configuration, so that the runtime does not start pods.
func Remove(dir string) error {
	err := os.Remove(filepath.Join(dir, ConfigFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
