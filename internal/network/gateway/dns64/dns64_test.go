package dns64

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/nat64"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/prefix64"
)

// zone answers from records in the notation of zone files.
type zone struct {
	records []string
	codes   map[uint16]int // by type
	down    map[uint16]bool
	nx      bool
}

func (z zone) exchange(_ context.Context, query *dns.Msg) (*dns.Msg, error) {
	question := query.Question[0]
	if z.down[question.Qtype] {
		return nil, errors.New("timeout")
	}
	answer := new(dns.Msg)
	answer.SetRcode(query, z.codes[question.Qtype])
	answer.AuthenticatedData = true
	if z.nx {
		answer.Rcode = dns.RcodeNameError
		return answer, nil
	}
	name := question.Name
	for _, text := range z.records {
		record, err := dns.NewRR(text)
		if err != nil {
			return nil, err
		}
		switch kind := record.Header().Rrtype; {
		case kind == dns.TypeSOA && len(answer.Answer) == 0:
			answer.Ns = append(answer.Ns, record)
		case record.Header().Name == name && kind == dns.TypeCNAME:
			answer.Answer = append(answer.Answer, record)
			name = record.(*dns.CNAME).Target
		case record.Header().Name == name && kind == question.Qtype:
			answer.Answer = append(answer.Answer, record)
		}
	}
	return answer, nil
}

var config = Config{Prefix: prefix64.WellKnown, ExcludeAAAA: DefaultExcludeAAAA(), ExcludeA: nat64.NotGlobal()}

func ask(t *testing.T, z zone, name string, kind uint16, change ...func(*dns.Msg)) *dns.Msg {
	t.Helper()
	query := new(dns.Msg)
	query.SetQuestion(name, kind)
	for _, c := range change {
		c(query)
	}
	answer, _ := config.Answer(t.Context(), query, z.exchange)
	if answer.Id != query.Id || !answer.Response || len(answer.Question) != len(query.Question) {
		t.Errorf("header of the answer: %v", answer.MsgHdr)
	}
	if _, err := answer.Pack(); err != nil {
		t.Errorf("the answer cannot be packed: %v", err)
	}
	return answer
}

func texts(records []dns.RR) (all []string) {
	for _, record := range records {
		all = append(all, record.String())
	}
	return all
}

func wantRecords(t *testing.T, answer *dns.Msg, want ...string) {
	t.Helper()
	if len(answer.Answer) != len(want) {
		t.Fatalf("records %q; want %q", texts(answer.Answer), want)
	}
	for i, text := range want {
		record, err := dns.NewRR(text)
		if err != nil {
			t.Fatal(err)
		}
		if answer.Answer[i].String() != record.String() {
			t.Errorf("record %q; want %q", answer.Answer[i], text)
		}
	}
}

func TestNameWithoutIPv6IsSynthesized(t *testing.T) {
	z := zone{records: []string{"www.test. 900 IN CNAME a.test.", "a.test. 300 IN A 8.8.4.4", "a.test. 300 IN A 10.0.0.1", "test. 60 IN SOA a. b. 1 2 3 4 30"}}
	answer := ask(t, z, "www.test.", dns.TypeAAAA)
	wantRecords(t, answer, "www.test. 900 IN CNAME a.test.", "a.test. 300 IN AAAA 64:ff9b::808:404")
	if answer.AuthenticatedData || !answer.RecursionAvailable {
		t.Errorf("flags %v", answer.MsgHdr)
	}
	z.records = []string{"test. 60 IN SOA a. b. 1 2 3 4 30", "a.test. 300 IN A 8.8.4.4"}
	wantRecords(t, ask(t, z, "a.test.", dns.TypeAAAA), "a.test. 30 IN AAAA 64:ff9b::808:404")
}

func TestNameWithIPv6IsNotChanged(t *testing.T) {
	z := zone{records: []string{"a.test. 300 IN A 8.8.4.4", "a.test. 300 IN AAAA 2001:db8::1"}}
	wantRecords(t, ask(t, z, "a.test.", dns.TypeAAAA), "a.test. 300 IN AAAA 2001:db8::1")
	wantRecords(t, ask(t, z, "a.test.", dns.TypeA), "a.test. 300 IN A 8.8.4.4")
}

func TestExcludedAddressesCountAsNone(t *testing.T) {
	z := zone{records: []string{"a.test. 300 IN A 8.8.4.4", "a.test. 300 IN AAAA ::ffff:8.8.4.4"}}
	wantRecords(t, ask(t, z, "a.test.", dns.TypeAAAA), "a.test. 300 IN AAAA 64:ff9b::808:404")
	z.records = append(z.records, "a.test. 300 IN AAAA 2001:db8::1")
	wantRecords(t, ask(t, z, "a.test.", dns.TypeAAAA), "a.test. 300 IN AAAA 2001:db8::1")
}

func TestNothingToSynthesize(t *testing.T) {
	if got := ask(t, zone{records: []string{"a.test. 300 IN A 10.0.0.1"}}, "a.test.", dns.TypeAAAA); len(got.Answer) != 0 || got.Rcode != dns.RcodeSuccess {
		t.Errorf("a private address: %v", got)
	}
	if got := ask(t, zone{nx: true}, "a.test.", dns.TypeAAAA); got.Rcode != dns.RcodeNameError {
		t.Errorf("a name that does not exist: %v", got)
	}
}

func TestServersThatTreatAAAAWrongly(t *testing.T) {
	records := []string{"a.test. 300 IN A 8.8.4.4"}
	for name, z := range map[string]zone{
		"SERVFAIL": {records: records, codes: map[uint16]int{dns.TypeAAAA: dns.RcodeServerFailure}},
		"timeout":  {records: records, down: map[uint16]bool{dns.TypeAAAA: true}},
	} {
		t.Run(name, func(t *testing.T) {
			wantRecords(t, ask(t, z, "a.test.", dns.TypeAAAA), "a.test. 300 IN AAAA 64:ff9b::808:404")
		})
	}
	halfDown := zone{down: map[uint16]bool{dns.TypeA: true}}
	if got := ask(t, halfDown, "a.test.", dns.TypeAAAA); got.Rcode != dns.RcodeServerFailure {
		t.Errorf("nobody knows whether the name has IPv4 addresses: %v", got)
	}
	down := zone{down: map[uint16]bool{dns.TypeAAAA: true, dns.TypeA: true}}
	if got := ask(t, down, "a.test.", dns.TypeAAAA); got.Rcode != dns.RcodeServerFailure {
		t.Errorf("no upstream answers: %v", got)
	}
}

func TestDNSSEC(t *testing.T) {
	z := zone{records: []string{"a.test. 300 IN A 8.8.4.4", "a.test. 300 IN RRSIG A 8 2 300 20300101000000 20200101000000 1 test. AAAA"}}
	do := func(m *dns.Msg) { m.SetEdns0(4096, true) }
	answer := ask(t, z, "a.test.", dns.TypeAAAA, do)
	wantRecords(t, answer, "a.test. 300 IN AAAA 64:ff9b::808:404")
	if options := answer.IsEdns0(); options == nil || !options.Do() || options.UDPSize() != serverSize {
		t.Error("the answer to a query with EDNS has no EDNS record of ours")
	}
	validating := func(m *dns.Msg) { do(m); m.CheckingDisabled = true }
	if got := ask(t, z, "a.test.", dns.TypeAAAA, validating); len(got.Answer) != 0 {
		t.Errorf("a validating client got %q", texts(got.Answer))
	}
}

func TestReverseNames(t *testing.T) {
	z := zone{records: []string{"4.4.8.8.in-addr.arpa. 300 IN PTR dns.test."}}
	name, err := dns.ReverseAddr("64:ff9b::8.8.4.4")
	if err != nil {
		t.Fatal(err)
	}
	wantRecords(t, ask(t, z, name, dns.TypePTR), name+" 600 IN CNAME 4.4.8.8.in-addr.arpa.", "4.4.8.8.in-addr.arpa. 300 IN PTR dns.test.")
	other, err := dns.ReverseAddr("2001:db8::1")
	if err != nil {
		t.Fatal(err)
	}
	wantRecords(t, ask(t, zone{records: []string{other + " 300 IN PTR b.test."}}, other, dns.TypePTR), other+" 300 IN PTR b.test.")
}

func TestPrefixDiscovery(t *testing.T) {
	wantRecords(t, ask(t, zone{nx: true}, "ipv4only.arpa.", dns.TypeAAAA),
		"ipv4only.arpa. 600 IN AAAA 64:ff9b::c000:aa", "ipv4only.arpa. 600 IN AAAA 64:ff9b::c000:ab")
}

func TestServerOverUDPAndTCP(t *testing.T) {
	upstream := &dns.Server{Addr: "127.0.0.1:0", Net: "udp", Handler: dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) {
		z := zone{}
		for range 60 {
			z.records = append(z.records, query.Question[0].Name+" 300 IN A 8.8.4.4")
		}
		answer, err := z.exchange(context.Background(), query)
		if err == nil {
			answer.Compress = true
			w.WriteMsg(answer)
		}
	})}
	started := make(chan struct{})
	upstream.NotifyStartedFunc = func() { close(started) }
	go upstream.ListenAndServe()
	<-started
	defer upstream.Shutdown()
	server, err := NewServer(ServerConfig{
		Config: config, Listen: []string{"127.0.0.1:0"}, Upstreams: []string{"127.0.0.1:1", upstream.PacketConn.LocalAddr().String()},
		Timeout: 5e9, MaxQueries: 10, Clients: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for network, truncated := range map[string]bool{"udp": true, "tcp": false} {
		query := new(dns.Msg)
		query.SetQuestion("a.test.", dns.TypeAAAA)
		client := dns.Client{Net: network, Timeout: 60e9}
		answer, _, err := client.Exchange(query, server.Addresses()[0])
		if err != nil {
			t.Fatal(err)
		}
		if answer.Truncated != truncated || !truncated && len(answer.Answer) != 60 {
			t.Errorf("%s: truncated %v, %d records, code %d", network, answer.Truncated, len(answer.Answer), answer.Rcode)
		}
	}
	if server.Counters.Synthesized.Load() != 2 {
		t.Errorf("%d answers were synthesized", server.Counters.Synthesized.Load())
	}
}

// FuzzAnswer gives hostile queries and answers of upstream resolvers to DNS64.
func FuzzAnswer(f *testing.F) {
	query := new(dns.Msg)
	query.SetQuestion("a.test.", dns.TypeAAAA)
	packed, err := query.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(packed, packed)
	f.Fuzz(func(t *testing.T, question, upstream []byte) {
		q, a := new(dns.Msg), new(dns.Msg)
		if q.Unpack(question) != nil || a.Unpack(upstream) != nil {
			return
		}
		answer, _ := config.Answer(t.Context(), q, func(context.Context, *dns.Msg) (*dns.Msg, error) { return a.Copy(), nil })
		if answer.Id != q.Id || !answer.Response {
			t.Fatalf("header of the answer: %v", answer.MsgHdr)
		}
	})
}
