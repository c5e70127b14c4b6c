package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/enroll"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/wireguard"
	"github.com/k8s-1m/k8s-1m/internal/util/atomicfile"
)

// maxAnswer bounds the answer of a gateway in bytes.
const maxAnswer = 64 << 10

// refusedError is an answer of a gateway that does not change by asking again at once.
type refusedError struct {
	status int
	text   string
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("refused with status %d: %s", e.status, e.text)
}

// api talks to gateways. Each request uses a new connection, so that a renewed certificate is used, and a
// gateway that has moved is found.
type api struct {
	config Config
	name   string // of the node
	client *http.Client
}

func newAPI(config Config) (*api, error) {
	roots, err := enroll.ReadCertificates(config.CA)
	if err != nil {
		return nil, err
	}
	name, err := ownName(config)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		DisableKeepAlives: true, TLSHandshakeTimeout: 5 * time.Second,
		TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: roots,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				pair, err := tls.LoadX509KeyPair(config.Certificate, config.Key)
				return &pair, err
			},
		},
	}
	return &api{config: config, name: name, client: &http.Client{Transport: transport, Timeout: 10 * time.Second}}, nil
}

// ownName returns the name of the node from its certificate.
func ownName(config Config) (string, error) {
	pair, err := tls.LoadX509KeyPair(config.Certificate, config.Key)
	if err != nil {
		return "", fmt.Errorf("certificate of the node: %w", err)
	}
	certificate, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return "", fmt.Errorf("certificate of the node: %w", err)
	}
	return enroll.NodeName(certificate)
}

// registration is the answer of a gateway.
type registration struct {
	enroll.Response
	// server is the address of the gateway that has answered. Its name may have several.
	server netip.Addr
}

func (a *api) register(ctx context.Context, gateway string, key wireguard.PublicKey) (r registration, err error) {
	body, err := json.Marshal(enroll.Request{PublicKey: key.String()})
	if err != nil {
		return r, err
	}
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if address, ok := info.Conn.RemoteAddr().(*net.TCPAddr); ok {
			r.server = address.AddrPort().Addr().Unmap()
		}
	}}
	answer, err := a.do(httptrace.WithClientTrace(ctx, trace), http.MethodPost, gateway, body)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(answer, &r.Response); err != nil {
		return r, fmt.Errorf("answer is not a registration: %w", err)
	}
	return r, nil
}

func (a *api) leave(ctx context.Context, gateway string) error {
	_, err := a.do(ctx, http.MethodDelete, gateway, nil)
	return err
}

func (a *api) do(ctx context.Context, method, gateway string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, gateway+enroll.Path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := a.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		var failure enroll.Failure
		_ = json.Unmarshal(answer, &failure) // the status suffices
		return nil, &refusedError{status: response.StatusCode, text: failure.Error}
	}
	return answer, nil
}

// Status is the content of the status file.
type Status struct {
	Gateway string `json:"gateway"`
	enroll.Response
}

// writeStatus replaces the status file.
func writeStatus(path, gateway string, response enroll.Response) error {
	if path == "" {
		return nil
	}
	content, err := json.MarshalIndent(Status{Gateway: gateway, Response: response}, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(content, '\n'), 0o644)
}
