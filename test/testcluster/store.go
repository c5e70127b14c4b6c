package testcluster

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// storeDialTimeout bounds the time in which a client connects to the store.
const storeDialTimeout = 30 * time.Second

// StoreClient returns a client of the cluster's store with the certificate of an API server. It is closed with the test.
func (c *Cluster) StoreClient(t *testing.T) *clientv3.Client {
	t.Helper()
	tls, err := transport.TLSInfo{
		TrustedCAFile: c.PKI("etcd/ca.crt"), CertFile: c.PKI("apiserver-etcd-client.crt"), KeyFile: c.PKI("apiserver-etcd-client.key"),
	}.ClientConfig()
	must(t, err)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{c.Named(t, "store").Address}, DialTimeout: storeDialTimeout, TLS: tls})
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Seed returns the seed in an environment variable, a random one if its value is "random", and 1 if it is not set. It logs
// the seed.
func Seed(t *testing.T, variable string) uint64 {
	t.Helper()
	seed := uint64(1)
	if text := os.Getenv(variable); text == "random" {
		seed = rand.Uint64()
	} else if text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		must(t, err)
	}
	t.Logf("%s=%d", variable, seed)
	return seed
}
