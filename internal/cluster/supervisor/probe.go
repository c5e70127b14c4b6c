package supervisor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

const (
	probeUntilReady = 100 * time.Millisecond
	probeWhenReady  = 2 * time.Second
	probeTimeout    = 5 * time.Second
	maxReportBytes  = 4096
	// A busy API server misses a probe now and then; it is no news before this many.
	missesBeforeNotReady = 3
)

// prober asks one component whether it is ready.
type prober struct {
	url    string
	client *http.Client
}

func newProber(probe component.Probe) (*prober, error) {
	transport := &http.Transport{}
	if probe.CAFile != "" {
		ca, err := os.ReadFile(probe.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading the authority for probes: %w", err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(ca)
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &prober{probe.URL, &http.Client{Transport: transport, Timeout: probeTimeout}}, nil
}

func (p *prober) ask(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return cause(err)
	}
	defer response.Body.Close()
	// A connection whose answer was not read to its end is of no use for the next probe,
	// and a handshake costs the component more than the probe.
	body, err := io.ReadAll(io.LimitReader(response.Body, maxReportBytes))
	if response.StatusCode == http.StatusOK {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("answers %s%s", response.Status, failedChecks(string(body)))
}

// cause strips the URL and the addresses, which the reader knows.
func cause(err error) error {
	var call *net.OpError
	if errors.As(err, &call) {
		return call.Err
	}
	var request *url.Error
	if errors.As(err, &request) {
		return request.Err
	}
	return err
}

// failedChecks picks the "[-]" lines out of a verbose health report.
func failedChecks(report string) string {
	var failed []string
	for line := range strings.Lines(report) {
		if name, isFailed := strings.CutPrefix(line, "[-]"); isFailed {
			failed = append(failed, strings.TrimSuffix(strings.TrimSpace(name), " failed: reason withheld"))
		}
	}
	if len(failed) == 0 {
		return ""
	}
	return ", failed: " + strings.Join(failed, ", ")
}
