package lifecycle

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// ErrNoSpace says that a disk has too little room.
var ErrNoSpace = errors.New("not enough disk space")

// ErrStoreUnreachable says that nobody serves at --store-address.
var ErrStoreUnreachable = errors.New("store does not answer")

const storeDialTimeout = 5 * time.Second

// checkSpace refuses to start where the disk would soon be full.
func checkSpace(path string, wanted resource.Quantity) error {
	existing := nearestExisting(path)
	var stat unix.Statfs_t
	if err := unix.Statfs(existing, &stat); err != nil {
		return fmt.Errorf("asking for the free space of %s: %w", existing, err)
	}
	free := resource.NewQuantity(int64(stat.Bavail)*stat.Bsize, resource.BinarySI)
	if free.Cmp(wanted) < 0 {
		return fmt.Errorf("%w: %s has %dMi free, --min-free-disk wants %s; free some, or set K1M_HOME or --data-dir to another disk",
			ErrNoSpace, existing, free.Value()>>20, wanted.String())
	}
	return nil
}

func nearestExisting(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == filepath.Dir(path) {
			return path
		}
		path = filepath.Dir(path)
	}
}

// checkStoreAddress makes sure that somebody serves at --store-address.
func checkStoreAddress(ctx context.Context, s clusterdir.Settings) error {
	if s.StoreAddress == "" {
		return nil
	}
	address, err := url.Parse(s.StoreAddress)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, storeDialTimeout)
	defer cancel()
	conn, err := dial(ctx, address, s)
	if err != nil {
		var reason syscall.Errno
		if errors.As(err, &reason) {
			err = reason
		}
		return fmt.Errorf("%w: %s: %w; start the store there or leave out --store-address", ErrStoreUnreachable, s.StoreAddress, err)
	}
	return conn.Close()
}

func dial(ctx context.Context, address *url.URL, s clusterdir.Settings) (net.Conn, error) {
	if address.Scheme == "http" {
		return new(net.Dialer).DialContext(ctx, "tcp", address.Host)
	}
	config, err := tlsConfig(s)
	if err != nil {
		return nil, err
	}
	dialer := tls.Dialer{Config: config}
	return dialer.DialContext(ctx, "tcp", address.Host)
}
