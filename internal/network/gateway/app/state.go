package app

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/dataplane"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/nat64"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/registry"
	"github.com/k8s-1m/k8s-1m/internal/util/atomicfile"
)

// stateVersion changes with the format of the state.
const stateVersion = 1

// state is what the gateway keeps over a restart.
type state struct {
	Version       int
	Saved         time.Time
	Registrations []registry.Registration
	Tunnels       []dataplane.SavedPeer
	Sessions      []nat64.SavedSession
}

// write replaces the state file.
func (s *state) write(path string) error {
	mode, err := cbor.EncOptions{Time: cbor.TimeRFC3339Nano}.EncMode()
	if err != nil {
		return err
	}
	content, err := mode.Marshal(s)
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	if err := atomicfile.Write(path, content, 0o600); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	return nil
}

// readState reads the state file. There is none at the first start.
func readState(path string) (*state, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	mode, err := cbor.DecOptions{MaxArrayElements: 1 << 24}.DecMode()
	if err != nil {
		return nil, err
	}
	var s state
	if err := mode.Unmarshal(content, &s); err != nil {
		return nil, fmt.Errorf("state: %s is damaged: %w", path, err)
	}
	if s.Version != stateVersion {
		return nil, fmt.Errorf("state: %s has version %d, not %d", path, s.Version, stateVersion)
	}
	return &s, nil
}

// saveState writes what is needed to continue.
func (g *gateway) saveState() error {
	if g.settings.stateFile == "" {
		return nil
	}
	now := time.Now()
	s := state{
		Version: stateVersion, Saved: now, Registrations: g.registry.Registrations(),
		Tunnels: g.plane.SavePeers(), Sessions: g.plane.SaveSessions(now),
	}
	return s.write(g.settings.stateFile)
}

// restoreState continues with the nodes and connections of before a restart. A state that cannot be used
// is not an error: nodes register again.
func (g *gateway) restoreState(log *slog.Logger) {
	if g.settings.stateFile == "" {
		return
	}
	s, err := readState(g.settings.stateFile)
	if err != nil {
		log.Warn("failed to restore the state; nodes must register again", "err", err)
	}
	if s == nil {
		return
	}
	now := time.Now()
	for _, registration := range s.Registrations {
		if err := g.registry.Restore(registration); err != nil {
			log.Warn("node must register again", "err", err)
		}
	}
	for _, saved := range s.Tunnels {
		g.plane.RestorePeer(saved, now)
	}
	sessions := g.plane.RestoreSessions(s.Sessions, max(0, now.Sub(s.Saved)), now)
	log.Info("state is restored", "nodes", len(s.Registrations), "connections", sessions, "lostConnections", len(s.Sessions)-sessions, "age", now.Sub(s.Saved).Round(time.Millisecond))
}
