// Package nat64 translates packets between IPv6 nodes and IPv4 servers: stateful NAT64 (RFC 6146) with
// the header translation of RFC 7915. It is pure: packets and the time go in, packets come out.
//
// A node opens connections to IPv4 addresses that are embedded in an IPv6 prefix (RFC 6052). Each
// source address and port of a node is bound to one address and port of the pool, whatever the
// destination (endpoint-independent mapping). Packets from IPv4 are accepted only for sessions that a
// node has opened with that server and port, which is stricter than RFC 6146 asks for: nothing from
// outside creates state.
//
//	translator.go  the life of a packet in each direction
//	ipv6.go ipv4.go  parsing and building of headers
//	icmp6.go icmp4.go  ICMP errors, in both directions
//	table.go ports.go node.go  bindings, sessions, ports of the pool, limits of a node
//	tcp.go expiry.go  states and timers
//	fragments.go  fragments of packets whose ports are only in the first one
//	state.go  saving and restoring the table
package nat64
