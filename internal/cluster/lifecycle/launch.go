package lifecycle

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// Files that the supervisor inherits, by number.
const (
	LeashFD = 3 // read end of the pipe that `up` holds
	LockFD  = 4 // lock that says that a supervisor lives
)

// SuperviseCommand is the hidden subcommand that runs the supervisor.
const SuperviseCommand = "supervise"

// launch starts the supervisor in a session of its own, so that neither a
// closed terminal nor Ctrl-C reaches it. As long as the returned leash is held
// and not committed, the supervisor lives no longer than we do.
func launch(dir clusterdir.Dir, alone *clusterdir.Lock) (leash io.WriteCloser, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding k1m's own program: %w", err)
	}
	log, err := os.OpenFile(dir.Log("supervisor"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the supervisor's log: %w", err)
	}
	defer log.Close()
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer reader.Close()

	cmd := exec.Command(self, SuperviseCommand, "--name", dir.Name())
	cmd.Env = append(os.Environ(), "K1M_HOME="+dir.Home())
	cmd.Dir = dir.Root()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{reader, alone.File()}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting the supervisor: %w", err), writer.Close())
	}
	return writer, cmd.Process.Release()
}

// absolutePaths makes the user's paths mean the same wherever k1m runs next.
func absolutePaths(s clusterdir.Settings) (clusterdir.Settings, error) {
	for _, path := range []*string{&s.DataDir, &s.StoreCAFile, &s.StoreCert, &s.StoreKey, &s.TraceFile} {
		if *path == "" {
			continue
		}
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return s, fmt.Errorf("%s: %w", *path, err)
		}
		*path = absolute
	}
	return s, nil
}

func tlsConfig(s clusterdir.Settings) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.StoreCAFile != "" {
		ca, err := os.ReadFile(s.StoreCAFile)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(ca)
	}
	if s.StoreCert != "" {
		cert, err := tls.LoadX509KeyPair(s.StoreCert, s.StoreKey)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{cert}
	}
	return config, nil
}

// explain adds advice to errors of the disk.
func explain(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w; free some space, or set K1M_HOME to another disk", err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w; make it yours, or set K1M_HOME to a folder that is", err)
	}
	return err
}
