// Package dns64 answers DNS queries so that names without IPv6 addresses have some in the prefix of NAT64
// (RFC 6147). It asks upstream resolvers and keeps no cache.
//
//	dns64.go    what a query becomes, without sockets
//	server.go   sockets, limits, upstream resolvers
package dns64

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/miekg/dns"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/prefix64"
)

// Config says how names are synthesized.
type Config struct {
	Prefix prefix64.Prefix
	// ExcludeAAAA are IPv6 addresses that count as none: a name that has only such ones is synthesized.
	ExcludeAAAA []netip.Prefix
	// ExcludeA are IPv4 addresses for which no IPv6 address is synthesized.
	ExcludeA []netip.Prefix
}

// DefaultExcludeAAAA are the IPv4-mapped addresses, which no host can be reached by (RFC 6147,
// section 5.1.4).
func DefaultExcludeAAAA() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("::ffff:0:0/96")}
}

// Exchange asks an upstream resolver.
type Exchange func(ctx context.Context, query *dns.Msg) (*dns.Msg, error)

const (
	// maxTTL bounds the TTL of synthesized records of names without SOA in the negative answer, in seconds
	// (RFC 6147, section 5.1.7).
	maxTTL = 600
	// discovery is the name by which hosts find the prefix (RFC 7050).
	discovery = "ipv4only.arpa."
)

var discoveryAddresses = [][4]byte{{192, 0, 0, 170}, {192, 0, 0, 171}}

// Answer answers a query. It never fails: errors of upstream resolvers become SERVFAIL.
func (c *Config) Answer(ctx context.Context, query *dns.Msg, exchange Exchange) (answer *dns.Msg, synthesized bool) {
	if query.Opcode != dns.OpcodeQuery || len(query.Question) != 1 {
		return failure(query, dns.RcodeNotImplemented), false
	}
	question := query.Question[0]
	if question.Qclass != dns.ClassINET {
		return c.pass(ctx, query, exchange), false
	}
	switch question.Qtype {
	case dns.TypePTR:
		if v4, ok := c.reverse(question.Name); ok {
			return c.answerPTR(ctx, query, v4, exchange), true
		}
	case dns.TypeAAAA:
		if strings.EqualFold(question.Name, discovery) {
			return c.answerDiscovery(query), true
		}
		return c.answerAAAA(ctx, query, exchange)
	}
	return c.pass(ctx, query, exchange), false
}

// pass passes a query to an upstream resolver.
func (c *Config) pass(ctx context.Context, query *dns.Msg, exchange Exchange) *dns.Msg {
	answer, err := exchange(ctx, query)
	if err != nil {
		return failure(query, dns.RcodeServerFailure)
	}
	return reply(query, answer)
}

// answerAAAA synthesizes addresses if there are none.
func (c *Config) answerAAAA(ctx context.Context, query *dns.Msg, exchange Exchange) (*dns.Msg, bool) {
	native, err := exchange(ctx, query)
	if err == nil && (native.Rcode == dns.RcodeNameError || validates(query)) {
		return reply(query, native), false
	}
	if err == nil && native.Rcode == dns.RcodeSuccess {
		kept, found := c.withoutExcluded(native.Answer)
		if found {
			answer := reply(query, native)
			if len(kept) != len(native.Answer) {
				answer.Answer, answer.AuthenticatedData = kept, false
			}
			return answer, false
		}
	}
	// Other codes and timeouts count as an empty answer: many servers treat AAAA wrongly (RFC 6147,
	// sections 5.1.2 and 5.1.3).
	asked := query.Copy()
	asked.Question[0].Qtype = dns.TypeA
	v4, errA := exchange(ctx, asked)
	if errA == nil && v4.Rcode == dns.RcodeSuccess {
		if records := c.synthesize(v4.Answer, negativeTTL(native)); records != nil {
			answer := reply(query, v4)
			answer.Answer, answer.Ns, answer.AuthenticatedData = records, nil, false
			return answer, true
		}
	}
	if err != nil || errA != nil { // the name may have addresses
		return failure(query, dns.RcodeServerFailure), false
	}
	return reply(query, native), false
}

// validates is true for clients that validate DNSSEC themselves, to whom synthesized records would be
// forgeries (RFC 6147, section 5.5).
func validates(query *dns.Msg) bool {
	options := query.IsEdns0()
	return options != nil && options.Do() && query.CheckingDisabled
}

// withoutExcluded returns the records without excluded addresses, and whether addresses remain.
func (c *Config) withoutExcluded(records []dns.RR) (kept []dns.RR, found bool) {
	for _, record := range records {
		if aaaa, ok := record.(*dns.AAAA); ok {
			address, valid := netip.AddrFromSlice(aaaa.AAAA)
			if !valid || contains(c.ExcludeAAAA, address) {
				continue
			}
			found = true
		}
		kept = append(kept, record)
	}
	return kept, found
}

func contains(prefixes []netip.Prefix, address netip.Addr) bool {
	for _, prefix := range prefixes {
		if prefix.Contains(address) {
			return true
		}
	}
	return false
}

// synthesize makes AAAA of the A records of an answer and keeps aliases. It is nil if there are none.
func (c *Config) synthesize(records []dns.RR, ttl uint32) []dns.RR {
	var made []dns.RR
	found := false
	for _, record := range records {
		switch r := record.(type) {
		case *dns.A:
			v4, ok := netip.AddrFromSlice(r.A.To4())
			if !ok || contains(c.ExcludeA, v4) {
				continue
			}
			found = true
			made = append(made, c.aaaa(r.Hdr.Name, v4.As4(), min(r.Hdr.Ttl, ttl)))
		case *dns.CNAME, *dns.DNAME:
			made = append(made, record)
		}
	}
	if !found {
		return nil
	}
	return made
}

func (c *Config) aaaa(name string, v4 [4]byte, ttl uint32) dns.RR {
	address := c.Prefix.Embed(v4)
	return &dns.AAAA{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeAAAA, Class: dns.ClassINET, Ttl: ttl}, AAAA: address[:]}
}

// negativeTTL is for how long the absence of AAAA records holds.
func negativeTTL(answer *dns.Msg) uint32 {
	if answer != nil {
		for _, record := range answer.Ns {
			if soa, ok := record.(*dns.SOA); ok {
				return min(soa.Hdr.Ttl, soa.Minttl)
			}
		}
	}
	return maxTTL
}

func (c *Config) answerDiscovery(query *dns.Msg) *dns.Msg {
	answer := new(dns.Msg)
	answer.SetReply(query)
	answer.RecursionAvailable = true
	for _, v4 := range discoveryAddresses {
		answer.Answer = append(answer.Answer, c.aaaa(query.Question[0].Name, v4, maxTTL))
	}
	return withOptions(query, answer)
}

// reverse returns the IPv4 address of a name below ip6.arpa that is in the prefix.
func (c *Config) reverse(name string) (v4 [4]byte, ok bool) {
	const suffix = ".ip6.arpa."
	lower := strings.ToLower(name)
	digits, is6 := strings.CutSuffix(lower, suffix)
	if !is6 || len(digits) != 63 {
		return v4, false
	}
	var address [16]byte
	for i := range 32 {
		digit := strings.IndexByte("0123456789abcdef", digits[2*i])
		if digit < 0 || i < 31 && digits[2*i+1] != '.' {
			return v4, false
		}
		position := 31 - i
		address[position/2] |= byte(digit) << (4 * (1 - position%2))
	}
	return c.Prefix.Extract(&address)
}

// answerPTR makes the reverse name an alias of that of the IPv4 address (RFC 6147, section 5.3.1).
func (c *Config) answerPTR(ctx context.Context, query *dns.Msg, v4 [4]byte, exchange Exchange) *dns.Msg {
	target := fmt.Sprintf("%d.%d.%d.%d.in-addr.arpa.", v4[3], v4[2], v4[1], v4[0])
	asked := query.Copy()
	asked.Question[0].Name = target
	upstream, err := exchange(ctx, asked)
	if err != nil {
		return failure(query, dns.RcodeServerFailure)
	}
	answer := reply(query, upstream)
	alias := &dns.CNAME{Hdr: dns.RR_Header{Name: query.Question[0].Name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: maxTTL}, Target: target}
	answer.Answer = append([]dns.RR{alias}, upstream.Answer...)
	answer.AuthenticatedData = false
	return answer
}

// reply makes an answer of an upstream resolver the answer to a query.
func reply(query, upstream *dns.Msg) *dns.Msg {
	answer := upstream.Copy()
	answer.Id, answer.Response, answer.Opcode = query.Id, true, query.Opcode
	answer.Question = query.Question
	answer.RecursionDesired, answer.CheckingDisabled, answer.RecursionAvailable = query.RecursionDesired, query.CheckingDisabled, true
	answer.Authoritative = false
	return withOptions(query, answer)
}

// serverSize is the size of UDP messages that is announced (DNS flag day 2020).
const serverSize = 1232

// withOptions gives an answer the EDNS record that belongs to the query: none if it has none.
func withOptions(query, answer *dns.Msg) *dns.Msg {
	extra := answer.Extra[:0:0]
	for _, record := range answer.Extra {
		if record.Header().Rrtype != dns.TypeOPT {
			extra = append(extra, record)
		}
	}
	answer.Extra = extra
	if options := query.IsEdns0(); options != nil {
		answer.SetEdns0(serverSize, options.Do())
	} else if answer.Rcode > 15 {
		answer.Rcode = dns.RcodeServerFailure // an extended code needs EDNS
	}
	return answer
}

func failure(query *dns.Msg, code int) *dns.Msg {
	answer := new(dns.Msg)
	answer.SetRcode(query, code)
	answer.RecursionAvailable = true
	return withOptions(query, answer)
}
