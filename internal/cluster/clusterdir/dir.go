package clusterdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

const (
	homeEnv = "K1M_HOME"

	// Keys lie below these folders.
	privateDirMode = 0o700
)

// Dir is where one cluster's files lie.
type Dir struct {
	home string
	name string
}

// NewDir places a cluster under $K1M_HOME, or ~/.k1m.
func NewDir(name string) (Dir, error) {
	home := os.Getenv(homeEnv)
	if home == "" {
		user, err := os.UserHomeDir()
		if err != nil {
			return Dir{}, fmt.Errorf("finding the home directory: %w; set %s", err, homeEnv)
		}
		home = filepath.Join(user, ".k1m")
	}
	home, err := filepath.Abs(home)
	if err != nil {
		return Dir{}, fmt.Errorf("%s=%s: %w", homeEnv, home, err)
	}
	return Dir{home: home, name: name}, nil
}

func (d Dir) Home() string                  { return d.home }
func (d Dir) Name() string                  { return d.name }
func (d Dir) Root() string                  { return filepath.Join(d.home, "clusters", d.name) }
func (d Dir) PKI() string                   { return filepath.Join(d.Root(), "pki") }
func (d Dir) Data() string                  { return filepath.Join(d.Root(), "data") }
func (d Dir) Logs() string                  { return filepath.Join(d.Root(), "logs") }
func (d Dir) Log(component string) string   { return filepath.Join(d.Logs(), component+".log") }
func (d Dir) Traces() string                { return filepath.Join(d.Root(), "traces") }
func (d Dir) Kubeconfigs() string           { return filepath.Join(d.Root(), "kubeconfig") }
func (d Dir) Kubeconfig(user string) string { return filepath.Join(d.Kubeconfigs(), user+".conf") }
func (d Dir) ConfigFiles() string           { return filepath.Join(d.Root(), "config") }
func (d Dir) ConfigFile(name string) string { return filepath.Join(d.ConfigFiles(), name) }
func (d Dir) StateFile() string             { return filepath.Join(d.Root(), "state.json") }
func (d Dir) Exists() bool                  { _, err := os.Stat(d.clusterFile()); return err == nil }
func (d Dir) clusterFile() string           { return filepath.Join(d.Root(), "cluster.json") }
func (d Dir) lockFile(purpose string) string {
	return filepath.Join(d.home, "locks", d.name+"."+purpose)
}

// Create makes the folders that all parts of a cluster write to.
func (d Dir) Create() error {
	for _, dir := range []string{d.Root(), d.PKI(), d.Data(), d.Logs(), d.Traces(), d.Kubeconfigs(), d.ConfigFiles()} {
		if err := os.MkdirAll(dir, privateDirMode); err != nil {
			return fmt.Errorf("creating %s: %w", dir, err)
		}
	}
	return nil
}

// Remove deletes everything that the cluster wrote below its root.
func (d Dir) Remove() error {
	if err := os.RemoveAll(d.Root()); err != nil {
		return fmt.Errorf("removing %s: %w", d.Root(), err)
	}
	return nil
}

// Names lists the clusters under the same home.
func (d Dir) Names() []string {
	entries, err := os.ReadDir(filepath.Join(d.home, "clusters"))
	if err != nil {
		return nil
	}
	var names []string
	for _, entry := range entries {
		if (Dir{home: d.home, name: entry.Name()}).Exists() {
			names = append(names, entry.Name())
		}
	}
	slices.Sort(names)
	return names
}

// WriteFileAtomic replaces a file so that a reader, or a crash, sees the old
// content or the new, never a part.
func WriteFileAtomic(path string, content []byte, mode os.FileMode) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp.Name()))
		}
	}()
	_, err = tmp.Write(content)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Close())
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
