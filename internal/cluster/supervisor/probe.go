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
	probeIntervalUntilReady = 100 * time.Millisecond
	probeIntervalWhenReady  = 2 * time.Second
	probeTimeout            = 5 * time.Second
	maxReportBytes          = 4096
	// failureThreshold is the number of consecutive failures after which a ready component becomes
	// not ready. It is more than 1, because a busy API server sometimes fails a probe.
	failureThreshold = 3
)

// prober performs the readiness probe of one component.
type prober struct {
	url    string
	client *http.Client
}

func newProber(probe component.Probe) (*prober, error) {
	transport := &http.Transport{}
	if probe.CAFile != "" {
		ca, err := os.ReadFile(probe.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading the CA certificate for probes: %w", err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(ca)
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &prober{probe.URL, &http.Client{Transport: transport, Timeout: probeTimeout}}, nil
}

// probe returns nil if the component is ready, otherwise the reason why it is not ready.
func (p *prober) probe(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return withoutAddress(err)
	}
	defer response.Body.Close()
	// Read the whole response; otherwise the connection cannot be reused. The TLS handshake of a
	// new connection costs the component more CPU time than the probe.
	body, err := io.ReadAll(io.LimitReader(response.Body, maxReportBytes))
	if response.StatusCode == http.StatusOK {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("readiness probe returned %s%s", response.Status, failedChecks(string(body)))
}

// AwaitReady calls a readiness probe until it succeeds. If ctx is done before, it returns the last reason why
// the component was not ready.
func AwaitReady(ctx context.Context, probe component.Probe) error {
	prober, err := newProber(probe)
	if err != nil {
		return err
	}
	for {
		err := prober.probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(probeIntervalUntilReady):
		}
	}
}

// withoutAddress removes the URL and the addresses from an error, because [ComponentState] already
// contains the component's address.
func withoutAddress(err error) error {
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

// failedChecks lists the failed checks of a verbose health report, which are its "[-]" lines. The result
// is empty, or starts with a comma so that it can follow another text.
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
