// Package enroll is how nodes become peers of the gateway: HTTPS, where a node proves its name with the
// client certificate of its kubelet (common name system:node:NAME, organization system:nodes).
//
//	api.go          the messages
//	server.go       the server, without sockets
//	identity.go     names in certificates, TLS
//	revocation.go   revoked certificates
package enroll

// Path is the resource of a node's own registration: POST creates or renews it, DELETE ends it.
const Path = "/v1/registration"

// Request is the body of a POST.
type Request struct {
	// PublicKey is the WireGuard key of the node in base64.
	PublicKey string `json:"publicKey"`
}

// Response answers a POST.
type Response struct {
	// PublicKey is the WireGuard key of the gateway.
	PublicKey string `json:"publicKey"`
	// Host is the address of the gateway's tunnel; if empty, that of the HTTPS server.
	Host string `json:"host,omitempty"`
	Port uint16 `json:"port"`
	// NAT64Prefix is routed into the tunnel; empty if the gateway does not translate.
	NAT64Prefix string `json:"nat64Prefix,omitempty"`
	// IPv4 is the address of the node in the tunnel; empty if the gateway does not masquerade.
	IPv4 string `json:"ipv4,omitempty"`
	// MTU is the longest packet in the tunnel.
	MTU int `json:"mtu"`
	// DNS64 are the addresses of DNS servers that answer with NAT64Prefix.
	DNS64 []string `json:"dns64,omitempty"`
	// RenewSeconds is after how long the node must register again.
	RenewSeconds int `json:"renewSeconds"`
}

// Failure is the body of an answer with another status than 200.
type Failure struct {
	Error string `json:"error"`
}
