package netns

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

// Dial opens a connection of the namespace. timeout is 0 for that of the kernel.
func (n *Namespace) Dial(network, address string, timeout time.Duration) (c net.Conn, err error) {
	err = n.Do(func() (err error) {
		c, err = net.DialTimeout(network, address, timeout)
		return err
	})
	return c, err
}

// HTTPClient returns a client whose connections are in the namespace, one for each request. timeout is that of a request. config is nil
// for the defaults.
func (n *Namespace) HTTPClient(timeout time.Duration, config *tls.Config) *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: config,
		DialContext: func(_ context.Context, network, address string) (net.Conn, error) {
			return n.Dial(network, address, timeout)
		},
	}}
}
