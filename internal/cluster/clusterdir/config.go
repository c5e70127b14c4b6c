package clusterdir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// layoutVersion counts changes of the folder's layout that older k1m cannot read.
const layoutVersion = 1

// ErrUnknown says that no cluster of that name exists.
var ErrUnknown = errors.New("no such cluster")

// Config is what cluster.json remembers.
type Config struct {
	Layout   int      `json:"layout"`
	Name     string   `json:"name"`
	Settings Settings `json:"settings"`
	Ports    Ports    `json:"ports"`
}

// NewConfig starts a cluster that has no ports yet.
func NewConfig(name string, settings Settings) Config {
	return Config{Layout: layoutVersion, Name: name, Settings: settings, Ports: Ports{}}
}

// Load reads cluster.json; ErrUnknown when there is none.
func Load(d Dir) (Config, error) {
	content, err := os.ReadFile(d.clusterFile())
	if errors.Is(err, fs.ErrNotExist) {
		return Config{}, unknown(d)
	}
	if err != nil {
		return Config{}, fmt.Errorf("reading the cluster's settings: %w", err)
	}
	var config Config
	if err := json.Unmarshal(content, &config); err != nil {
		return Config{}, fmt.Errorf("%s is damaged: %w; remove the cluster with `k1m down --name %s`", d.clusterFile(), err, d.name)
	}
	if config.Layout != layoutVersion {
		return Config{}, fmt.Errorf("%s has layout %d, this k1m knows %d; use the k1m that made it, or start over with `k1m down --name %s`",
			d.Root(), config.Layout, layoutVersion, d.name)
	}
	return config, nil
}

// Save writes cluster.json.
func (c Config) Save(d Dir) error {
	content, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	if err := WriteFileAtomic(d.clusterFile(), append(content, '\n'), 0o600); err != nil {
		return fmt.Errorf("saving the cluster's settings: %w", err)
	}
	return nil
}

// DataDir is where the store's data lies, chosen by the user or not.
func (c Config) DataDir(d Dir) string {
	if c.Settings.DataDir != "" {
		return c.Settings.DataDir
	}
	return d.Data()
}

// TraceFile is where a recording of what the store is asked begins; further ones, of
// a proxy that was started again, have a number in their name.
func (c Config) TraceFile(d Dir) string {
	if c.Settings.TraceFile != "" {
		return c.Settings.TraceFile
	}
	return filepath.Join(d.Traces(), "trace.jsonl.zst")
}

// TraceFiles lists all recordings, in the order in which they were begun.
func (c Config) TraceFiles(d Dir) []string {
	first := c.TraceFile(d)
	stem, ends, _ := strings.Cut(filepath.Base(first), ".")
	if ends != "" {
		ends = "." + ends
	}
	var files []string
	for number := 1; ; number++ {
		path := first
		if number > 1 {
			path = filepath.Join(filepath.Dir(first), fmt.Sprintf("%s-%d%s", stem, number, ends))
		}
		if _, err := os.Stat(path); err != nil {
			return files
		}
		files = append(files, path)
	}
}

func unknown(d Dir) error {
	hint := "none exists yet"
	if names := d.Names(); len(names) > 0 {
		hint = "there is " + strings.Join(names, ", ")
	}
	return fmt.Errorf("cluster %q: %w (%s); create it with `k1m up --name %s`", d.name, ErrUnknown, hint, d.name)
}
