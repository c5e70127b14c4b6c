package clusterdir

import (
	"errors"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// maxGateways is a limit because more gateways would only compete for the cores of the machine. Several are needed
// where the limit on open files is low.
const maxGateways = 16

// gatewayByDefault is the default of --gateway for a number of API servers. To run a gateway by default in
// front of several API servers, return apiServers > 1, and let the target "up" of the Makefile build
// kube-gateway if K1M_FLAGS contains --apiservers.
func gatewayByDefault(_ int) bool { return false }

// GatewayName returns the component name of the i-th kube-gateway, counted from 0. It is also the name of
// the port for clients.
func GatewayName(i int) string {
	if i == 0 {
		return "kube-gateway"
	}
	return "kube-gateway-" + strconv.Itoa(i)
}

// GatewayMetricsPort returns the name of the port on which a gateway serves /readyz and /metrics.
func GatewayMetricsPort(gateway string) string { return gateway + "-metrics" }

// GatewayNames returns the component names of all gateways; none if clients connect to the API servers.
func (s *Settings) GatewayNames() []string {
	if s.Gateway == nil || !*s.Gateway {
		return nil
	}
	names := make([]string, s.Gateways)
	for i := range names {
		names[i] = GatewayName(i)
	}
	return names
}

// overlayGateway adapts the saved settings of the gateways to other settings that the user gave.
func (s *Settings) overlayGateway(saved *Settings, given *pflag.FlagSet) {
	// The default depends on the number of API servers. A saved value that differs from the default was
	// given by the user.
	isDefault := saved.Gateway != nil && *saved.Gateway == gatewayByDefault(saved.APIServers)
	if s.APIServers != saved.APIServers && !given.Changed("gateway") && isDefault {
		s.Gateway = new(gatewayByDefault(s.APIServers))
	}
	if len(saved.GatewayNames()) == 0 || len(s.GatewayNames()) > 0 {
		return
	}
	// The gateways were switched off, so their saved settings do not apply.
	if !given.Changed("gateways") {
		s.Gateways = 1
	}
	if !given.Changed("gateway-config") {
		s.GatewayConfig = ""
	}
	if !given.Changed("gateway-arg") {
		s.GatewayArgs = nil
	}
}

func (s *Settings) validateGateway() error {
	enabled := s.Gateway != nil && *s.Gateway
	switch {
	case s.Gateways < 1 || s.Gateways > maxGateways:
		return usage.Errorf("--gateways %d: choose 1 to %d; use --gateway=false for a cluster without a gateway", s.Gateways, maxGateways)
	case !enabled && (s.Gateways > 1 || s.GatewayConfig != "" || len(s.GatewayArgs) > 0):
		return usage.Errorf("--gateways, --gateway-config and --gateway-arg need --gateway; add it")
	}
	return nil
}

// optionalBool is the value of a boolean flag that also has the state "not set", in which its target is
// nil. It implements [pflag.Value].
type optionalBool struct{ target **bool }

// String returns true or false, or an empty string if the flag is not set.
func (b optionalBool) String() string {
	if b.target == nil || *b.target == nil {
		return ""
	}
	return strconv.FormatBool(**b.target)
}

// Set parses true or false. An empty string means that the flag is not set.
func (b optionalBool) Set(text string) error {
	if text == "" {
		*b.target = nil
		return nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return errors.New("choose true or false")
	}
	*b.target = &value
	return nil
}

// Type returns bool, so that the help describes the flag as a boolean flag.
func (b optionalBool) Type() string { return "bool" }
