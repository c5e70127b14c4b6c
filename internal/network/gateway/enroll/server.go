package enroll

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/registry"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/wireguard"
)

// maxBody bounds the body of a request in bytes.
const maxBody = 4096

// Registry is the part of a registry that the server needs.
type Registry interface {
	Register(name string, key wireguard.PublicKey, certificate registry.Certificate, now time.Time) (registry.Registration, error)
	Leave(name string) bool
}

// Server answers registrations.
type Server struct {
	// Template is the answer without IPv4.
	Template Response
	Registry Registry
	// Revoked is true for certificates that must no longer be accepted.
	Revoked func(serial string) bool
	// Now is the time.
	Now func() time.Time
	// Count is called with the status of each answer.
	Count func(status int)
}

// ServeHTTP serves Path. The TLS server has verified the chain of the client certificate.
func (s *Server) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	status, body := s.answer(w, request)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	s.Count(status)
	_ = json.NewEncoder(w).Encode(body) // the client has gone
}

func (s *Server) answer(w http.ResponseWriter, request *http.Request) (int, any) {
	if request.URL.Path != Path {
		return fail(http.StatusNotFound, fmt.Errorf("no such path; use %s", Path))
	}
	if request.TLS == nil || len(request.TLS.VerifiedChains) == 0 {
		return fail(http.StatusUnauthorized, errors.New("no client certificate"))
	}
	certificate := request.TLS.VerifiedChains[0][0]
	name, err := NodeName(certificate)
	if err != nil {
		return fail(http.StatusForbidden, err)
	}
	serial, now := certificate.SerialNumber.String(), s.Now()
	// A connection that was opened before the certificate expired may still be open.
	if s.Revoked(serial) || now.After(certificate.NotAfter) {
		return fail(http.StatusForbidden, fmt.Errorf("certificate %s of node %s is revoked or has expired; request a new one", serial, name))
	}
	switch request.Method {
	case http.MethodPost:
		return s.register(w, request, name, registry.Certificate{Serial: serial, Expires: certificate.NotAfter}, now)
	case http.MethodDelete:
		if !s.Registry.Leave(name) {
			return fail(http.StatusNotFound, fmt.Errorf("node %s is not registered", name))
		}
		return http.StatusOK, struct{}{}
	}
	w.Header().Set("Allow", "POST, DELETE")
	return fail(http.StatusMethodNotAllowed, fmt.Errorf("method %.20q; use POST or DELETE", request.Method))
}

func (s *Server) register(w http.ResponseWriter, request *http.Request, name string, certificate registry.Certificate, now time.Time) (int, any) {
	var body Request
	decoder := json.NewDecoder(http.MaxBytesReader(w, request.Body, maxBody))
	if err := decoder.Decode(&body); err != nil {
		return fail(http.StatusBadRequest, fmt.Errorf("body is not a registration: %w", err))
	}
	key, err := wireguard.ParsePublicKey(body.PublicKey)
	if err != nil {
		return fail(http.StatusBadRequest, err)
	}
	registration, err := s.Registry.Register(name, key, certificate, now)
	if err != nil {
		return fail(statusOf(err), err)
	}
	response := s.Template
	if registration.IPv4.IsValid() {
		response.IPv4 = registration.IPv4.String()
	}
	return http.StatusOK, response
}

func statusOf(err error) int {
	switch {
	case errors.Is(err, registry.ErrUnknownNode):
		return http.StatusNotFound
	case errors.Is(err, registry.ErrConflict), errors.Is(err, registry.ErrNoPrefix):
		return http.StatusConflict
	case errors.Is(err, registry.ErrFull):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

func fail(status int, err error) (int, any) { return status, Failure{Error: err.Error()} }
