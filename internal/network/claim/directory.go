package claim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/k8s-1m/k8s-1m/internal/util/atomicfile"
)

// directory keeps each claim in a file. A lock on the directory serializes the changes of all processes.
type directory struct {
	path string
}

// NewDirectory returns a store of claims in a directory, which is created.
func NewDirectory(path string) (Store, error) {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("create the directory of claims: %w", err)
	}
	return directory{path}, nil
}

func (d directory) Now() time.Time { return time.Now() }

// Exists says that all nodes exist: the directory does not know nodes.
func (d directory) Exists(context.Context, string) (bool, error) { return true, nil }

// fileName returns a name without characters that are special in shells or in names of Kubernetes.
func fileName(prefix netip.Prefix) string {
	return fmt.Sprintf("%s-%d", strings.ReplaceAll(prefix.Addr().StringExpanded(), ":", ""), prefix.Bits())
}

func (d directory) Update(_ context.Context, prefix netip.Prefix, change func(*Claim) (*Claim, error)) (err error) {
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	path := filepath.Join(d.path, fileName(prefix)+".json")
	var before *Claim
	content, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return fmt.Errorf("read claim: %w", err)
	default:
		before = &Claim{}
		if err := json.Unmarshal(content, before); err != nil {
			return fmt.Errorf("claim %s is damaged: %w; remove the file if no node uses the prefix", path, err)
		}
	}
	after, err := change(before)
	switch {
	case err != nil:
		return err
	case after == nil:
		return os.Remove(path)
	case before != nil && *before == *after:
		return nil
	}
	return write(path, after)
}

// write replaces a file as a whole.
func write(path string, c *Claim) error {
	content, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(path, append(content, '\n'), 0o644); err != nil {
		return fmt.Errorf("write claim: %w", err)
	}
	return nil
}

func (d directory) lock() (unlock func() error, err error) {
	file, err := os.OpenFile(filepath.Join(d.path, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the claims: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the claims: %w", err), file.Close())
	}
	return file.Close, nil
}
