package lifecycle

import (
	"context"
	"crypto/tls"
	"crypto/x509"
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

// ErrNoSpace means that a disk has less than the required free space.
var ErrNoSpace = errors.New("not enough disk space")

// ErrStoreUnreachable means that a connection to --store-address failed.
var ErrStoreUnreachable = errors.New("cannot connect to the store")

const storeDialTimeout = 5 * time.Second

// checkSpace returns an error that wraps ErrNoSpace if the file system of path has less free space than
// required.
func checkSpace(path string, required resource.Quantity) error {
	existing := nearestExisting(path)
	var stat unix.Statfs_t
	if err := unix.Statfs(existing, &stat); err != nil {
		return fmt.Errorf("reading the free disk space of %s: %w", existing, err)
	}
	free := resource.NewQuantity(int64(stat.Bavail)*stat.Bsize, resource.BinarySI)
	if free.Cmp(required) < 0 {
		return fmt.Errorf("%w: %s has %dMi free, --min-free-disk requires %s; free some space, or set K1M_HOME or --data-dir to another disk",
			ErrNoSpace, existing, free.Value()>>20, required.String())
	}
	return nil
}

// nearestExisting returns path or, if it does not exist, the nearest parent directory that exists.
func nearestExisting(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == filepath.Dir(path) {
			return path
		}
		path = filepath.Dir(path)
	}
}

// checkStoreAddress returns an error that wraps ErrStoreUnreachable if it cannot connect to
// --store-address.
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
		return fmt.Errorf("%w: %s: %w; start the store or omit --store-address", ErrStoreUnreachable, s.StoreAddress, err)
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

// absolutePaths makes the paths in the settings absolute, because the supervisor has another working
// directory.
func absolutePaths(s clusterdir.Settings) (clusterdir.Settings, error) {
	for _, path := range []*string{&s.DataDir, &s.StoreCAFile, &s.StoreCert, &s.StoreKey, &s.TraceFile, &s.GatewayConfig} {
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
