// Package wireguard is the gateway's end of WireGuard tunnels: handshake, transport and timers of the
// protocol (https://www.wireguard.com/protocol/) for many peers in little memory. It is pure: datagrams,
// randomness and the time go in, datagrams and packets come out. Nodes use the wireguard-go library or
// the kernel; the gateway does not, because the library keeps two goroutines and queues of 17 KiB for
// each peer (docs/adr/0027-ipv4-gateway.md).
//
//	keys.go       keys in the notation of wg(8)
//	noise.go      the Noise handshake IKpsk2
//	cookie.go     MACs and cookies against floods of handshakes
//	session.go    keys of the transport, counters, replays
//	tunnel.go     peers, and datagrams that arrive
//	handshake.go  initiations and responses of a peer
//	timers.go     rekeying, keepalives, expiry
package wireguard
