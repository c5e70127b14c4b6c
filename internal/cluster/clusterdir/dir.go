package clusterdir

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

const (
	homeEnv = "K1M_HOME"

	// privateDirMode excludes other users, because the directories contain private keys.
	privateDirMode = 0o700
)

// Dir is the directory of one cluster. Its methods return the paths of the files in it.
type Dir struct {
	home string
	name string
}

// NewDir returns the directory of a cluster under $K1M_HOME, by default ~/.k1m. It does not create the
// directory.
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

// Home returns $K1M_HOME, which contains all clusters.
func (d Dir) Home() string { return d.home }

// Name returns the name of the cluster.
func (d Dir) Name() string { return d.name }

// Root returns the directory that contains all files of the cluster except its lock files.
func (d Dir) Root() string { return filepath.Join(d.home, "clusters", d.name) }

// PKI returns the directory of the certificates and keys.
func (d Dir) PKI() string { return filepath.Join(d.Root(), "pki") }

// Data returns the store's default data directory.
func (d Dir) Data() string { return filepath.Join(d.Root(), "data") }

// Logs returns the directory of the components' logs.
func (d Dir) Logs() string { return filepath.Join(d.Root(), "logs") }

// Log returns the log file of a component.
func (d Dir) Log(component string) string { return filepath.Join(d.Logs(), component+".log") }

// Traces returns the default directory of etcd-proxy's trace files.
func (d Dir) Traces() string { return filepath.Join(d.Root(), "traces") }

// Kubeconfigs returns the directory of the kubeconfig files.
func (d Dir) Kubeconfigs() string { return filepath.Join(d.Root(), "kubeconfig") }

// Kubeconfig returns the kubeconfig file of a user.
func (d Dir) Kubeconfig(user string) string { return filepath.Join(d.Kubeconfigs(), user+".conf") }

// ConfigFiles returns the directory of the components' configuration files.
func (d Dir) ConfigFiles() string { return filepath.Join(d.Root(), "config") }

// ConfigFile returns a configuration file of a component.
func (d Dir) ConfigFile(name string) string { return filepath.Join(d.ConfigFiles(), name) }

// Socket returns the Unix socket of a component. It is directly in Root, because the path of a socket is
// limited ([SocketFits]).
func (d Dir) Socket(component string) string { return filepath.Join(d.Root(), component+".sock") }

// maxSocketPath is the maximum length of the path of a Unix socket on Linux: sun_path has 108 bytes, of
// which the last one is 0.
const maxSocketPath = 107

// SocketFits reports whether a process can listen on a Unix socket with this path.
func SocketFits(path string) bool { return len(path) <= maxSocketPath }

// StateFile returns the file in which the supervisor reports the state of the components.
func (d Dir) StateFile() string { return filepath.Join(d.Root(), "state.json") }

// Exists reports whether the cluster has a cluster.json.
func (d Dir) Exists() bool { _, err := os.Stat(d.clusterFile()); return err == nil }

func (d Dir) clusterFile() string { return filepath.Join(d.Root(), "cluster.json") }

// lockFile returns a file outside Root, so that the lock still exists after the cluster was removed.
func (d Dir) lockFile(purpose string) string {
	return filepath.Join(d.home, "locks", d.name+"."+purpose)
}

// Create creates the directories of the cluster.
func (d Dir) Create() error {
	for _, dir := range []string{d.Root(), d.PKI(), d.Data(), d.Logs(), d.Traces(), d.Kubeconfigs(), d.ConfigFiles()} {
		if err := os.MkdirAll(dir, privateDirMode); err != nil {
			return fmt.Errorf("creating %s: %w", dir, err)
		}
	}
	return nil
}

// Remove deletes Root with all its files.
func (d Dir) Remove() error {
	if err := os.RemoveAll(d.Root()); err != nil {
		return fmt.Errorf("removing %s: %w", d.Root(), err)
	}
	return nil
}

// Names returns the names of the clusters in Home, sorted.
func (d Dir) Names() []string {
	entries, err := os.ReadDir(filepath.Join(d.home, "clusters"))
	if err != nil {
		return nil
	}
	var names []string
	for _, entry := range entries {
		// Other names are those of directories that [Dir.Stage] has created.
		if validName.MatchString(entry.Name()) && (Dir{home: d.home, name: entry.Name()}).Exists() {
			names = append(names, entry.Name())
		}
	}
	slices.Sort(names)
	return names
}
