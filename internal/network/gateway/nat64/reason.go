package nat64

// Reason says why a packet was dropped.
type Reason uint8

// The reasons, in the order of their names.
const (
	NotDropped Reason = iota
	// Malformed packets have wrong lengths, header chains or checksums that cannot be.
	Malformed
	// BadSource packets have a source that no host may have.
	BadSource
	// NotInPrefix packets are for an IPv6 address outside of the prefix.
	NotInPrefix
	// DeniedDestination packets are for an IPv4 address of Config.Denied.
	DeniedDestination
	// Hairpin packets are for an address of the pool: nodes reach each other by IPv6.
	Hairpin
	// UnsupportedProtocol packets are neither TCP, UDP nor ICMP echo or error.
	UnsupportedProtocol
	// HopLimit packets have used up their hops.
	HopLimit
	// TooBig packets do not fit into the MTU to the node.
	TooBig
	// NoSession packets from IPv4 belong to no session; from a node, they are not the first of one.
	NoSession
	// NodeSessions, NodePorts and NodeRate: a limit of the node.
	NodeSessions
	NodePorts
	NodeRate
	// TableFull: Config.MaxSessions.
	TableFull
	// PoolExhausted: no port is free at the address of the node.
	PoolExhausted
	// FragmentFirst fragments came before the first one of their packet, or after a timeout.
	FragmentFirst
	// FragmentLimit: too many fragmented packets at a time.
	FragmentLimit
	// FragmentICMP: fragmented ICMP cannot be translated without reassembly.
	FragmentICMP
	// FragmentChecksum: a fragmented UDP packet without checksum.
	FragmentChecksum
	// SourceRoute: an IPv4 source route or an IPv6 routing header that has not ended.
	SourceRoute
	// Untranslatable ICMP errors have no equal on the other side.
	Untranslatable
	reasons
)

var reasonNames = [reasons]string{
	"", "malformed", "bad_source", "not_in_prefix", "denied_destination", "hairpin", "unsupported_protocol",
	"hop_limit", "too_big", "no_session", "node_sessions", "node_ports", "node_rate", "table_full",
	"pool_exhausted", "fragment_before_first", "fragment_limit", "fragment_icmp", "fragment_checksum",
	"source_route", "untranslatable",
}

// String returns the name of the reason for metrics.
func (r Reason) String() string { return reasonNames[r] }

// Reasons returns all reasons for which packets are dropped.
func Reasons() []Reason {
	all := make([]Reason, 0, reasons-1)
	for r := Malformed; r < reasons; r++ {
		all = append(all, r)
	}
	return all
}
