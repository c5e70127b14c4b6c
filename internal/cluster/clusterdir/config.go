package clusterdir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/util/atomicfile"
)

// layoutVersion is the version of the layout of the cluster directory. It is incremented by each change
// that an older k1m cannot read.
const layoutVersion = 1

// ErrUnknown means that no cluster with the given name exists.
var ErrUnknown = errors.New("no such cluster")

// Config is the content of cluster.json: the settings of a cluster and its assigned ports. It is kept
// when the cluster is stopped.
type Config struct {
	Layout   int      `json:"layout"`
	Name     string   `json:"name"`
	Settings Settings `json:"settings"`
	Ports    Ports    `json:"ports"`
}

// NewConfig returns the configuration of a new cluster. No ports are assigned yet.
func NewConfig(name string, settings Settings) Config {
	return Config{Layout: layoutVersion, Name: name, Settings: settings, Ports: Ports{}}
}

// Load reads cluster.json. The error wraps ErrUnknown if the file does not exist.
func Load(d Dir) (Config, error) {
	content, err := os.ReadFile(d.clusterFile())
	if errors.Is(err, fs.ErrNotExist) {
		return Config{}, unknownClusterError(d)
	}
	if err != nil {
		return Config{}, fmt.Errorf("reading the cluster's settings: %w", err)
	}
	config, err := decodeConfig(content)
	if err != nil {
		return Config{}, fmt.Errorf("%s is damaged: %w; remove the cluster with `k1m down --name %s`", d.clusterFile(), err, d.name)
	}
	if config.Layout != layoutVersion {
		return Config{}, fmt.Errorf("%s has layout %d, but this k1m supports layout %d; use the k1m that created it, or start over with `k1m down --name %s`",
			d.Root(), config.Layout, layoutVersion, d.name)
	}
	return config, nil
}

// ParseConfig returns the configuration in the content of a cluster.json that belongs to no directory, such
// as that in a snapshot.
func ParseConfig(content []byte) (Config, error) {
	config, err := decodeConfig(content)
	if err != nil {
		return Config{}, fmt.Errorf("cluster.json is damaged: %w", err)
	}
	if config.Layout != layoutVersion {
		return Config{}, fmt.Errorf("cluster.json has layout %d, but this k1m supports layout %d; use the k1m that wrote it", config.Layout, layoutVersion)
	}
	return config, nil
}

func decodeConfig(content []byte) (Config, error) {
	// An older k1m saved settings without Gateways, NodeSimulator, NodeSims, ControllerManagers, Standby and
	// StoreReplicas.
	config := Config{Settings: Settings{Gateways: 1, NodeSimulator: SimulatorKwok, NodeSims: 1, ControllerManagers: 1, Standby: StandbyCold, StoreReplicas: 1}}
	err := json.Unmarshal(content, &config)
	return config, err
}

// Encode returns the content of cluster.json.
func (c Config) Encode() ([]byte, error) {
	content, err := json.MarshalIndent(c, "", "  ")
	return append(content, '\n'), err
}

// Save writes cluster.json.
func (c Config) Save(d Dir) error {
	content, err := c.Encode()
	if err != nil {
		return err
	}
	if err := atomicfile.Write(d.clusterFile(), content, 0o600); err != nil {
		return fmt.Errorf("saving the cluster's settings: %w", err)
	}
	return nil
}

// DataDir returns the store's data directory: --data-dir, or the default in the cluster directory.
func (c Config) DataDir(d Dir) string {
	if c.Settings.DataDir != "" {
		return c.Settings.DataDir
	}
	return d.Data()
}

// TraceFile returns the path of the first trace file of etcd-proxy. After each restart, etcd-proxy
// writes another trace file, with a number in its name.
func (c Config) TraceFile(d Dir) string {
	if c.Settings.TraceFile != "" {
		return c.Settings.TraceFile
	}
	return filepath.Join(d.Traces(), "trace.jsonl.zst")
}

// TraceFiles lists the existing trace files, oldest first.
func (c Config) TraceFiles(d Dir) []string {
	first := c.TraceFile(d)
	stem, extension, _ := strings.Cut(filepath.Base(first), ".")
	if extension != "" {
		extension = "." + extension
	}
	var files []string
	for number := 1; ; number++ {
		path := first
		if number > 1 {
			path = filepath.Join(filepath.Dir(first), fmt.Sprintf("%s-%d%s", stem, number, extension))
		}
		if _, err := os.Stat(path); err != nil {
			return files
		}
		files = append(files, path)
	}
}

func unknownClusterError(d Dir) error {
	hint := "no clusters exist yet"
	if names := d.Names(); len(names) > 0 {
		hint = "existing clusters: " + strings.Join(names, ", ")
	}
	return fmt.Errorf("cluster %q: %w (%s); create it with `k1m up --name %s`", d.name, ErrUnknown, hint, d.name)
}
