package dns64

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// ServerConfig is the configuration of a server.
type ServerConfig struct {
	Config
	// Listen are addresses with ports, for UDP and TCP.
	Listen []string
	// Upstreams are the addresses of resolvers with ports. They are asked in order until one answers.
	Upstreams []string
	// Timeout bounds one question to one upstream resolver.
	Timeout time.Duration
	// MaxQueries bounds the queries at a time. More are answered with REFUSED at once.
	MaxQueries int
	// Clients may ask; all if empty.
	Clients []netip.Prefix
}

// Counters count queries.
type Counters struct {
	Queries, Synthesized, Refused, UpstreamErrors atomic.Uint64
}

// Server is a running server.
type Server struct {
	config   ServerConfig
	slots    chan struct{}
	servers  []*dns.Server
	wait     sync.WaitGroup
	failed   chan error
	Counters Counters
}

// NewServer starts a server.
func NewServer(config ServerConfig) (*Server, error) {
	if len(config.Upstreams) == 0 {
		return nil, errors.New("DNS64: no upstream resolver")
	}
	s := &Server{config: config, slots: make(chan struct{}, config.MaxQueries), failed: make(chan error, 1)}
	for _, address := range config.Listen {
		if err := s.listen(address); err != nil {
			s.Close()
			return nil, fmt.Errorf("DNS64: listen on %s: %w", address, err)
		}
	}
	return s, nil
}

func (s *Server) listen(address string) error {
	udp, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	tcp, err := net.Listen("tcp", udp.LocalAddr().String())
	if err != nil {
		udp.Close()
		return err
	}
	const idle = 10 * time.Second
	s.start(&dns.Server{PacketConn: udp, Handler: s, UDPSize: dns.MaxMsgSize})
	s.start(&dns.Server{Listener: tcp, Handler: s, ReadTimeout: idle, WriteTimeout: idle, MaxTCPQueries: 128,
		IdleTimeout: func() time.Duration { return idle }})
	return nil
}

func (s *Server) start(server *dns.Server) {
	started := make(chan struct{})
	server.NotifyStartedFunc = func() { close(started) }
	s.servers = append(s.servers, server)
	s.wait.Go(func() {
		if err := server.ActivateAndServe(); err != nil {
			select {
			case s.failed <- fmt.Errorf("DNS64: %w", err):
			default:
			}
		}
	})
	select {
	case <-started:
	case <-time.After(time.Minute): // ActivateAndServe has failed
	}
}

// Failed receives an error if the server can no longer serve.
func (s *Server) Failed() <-chan error { return s.failed }

// Addresses returns the addresses on which the server listens.
func (s *Server) Addresses() (addresses []string) {
	for _, server := range s.servers {
		if server.PacketConn != nil {
			addresses = append(addresses, server.PacketConn.LocalAddr().String())
		}
	}
	return addresses
}

// Close stops the server and waits for its queries.
func (s *Server) Close() {
	for _, server := range s.servers {
		_ = server.Shutdown() // fails only if it does not run
	}
	s.wait.Wait()
}

// ServeDNS answers a query.
func (s *Server) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	s.Counters.Queries.Add(1)
	if !s.permitted(w.RemoteAddr()) {
		s.refuse(w, query)
		return
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		s.refuse(w, query)
		return
	}
	answer, synthesized := s.config.Answer(context.Background(), query, s.exchange)
	if synthesized {
		s.Counters.Synthesized.Add(1)
	}
	if _, overUDP := w.RemoteAddr().(*net.UDPAddr); overUDP {
		size := dns.MinMsgSize
		if options := query.IsEdns0(); options != nil {
			size = max(size, min(int(options.UDPSize()), serverSize))
		}
		answer.Truncate(size)
	}
	_ = w.WriteMsg(answer) // the client has gone
}

func (s *Server) refuse(w dns.ResponseWriter, query *dns.Msg) {
	s.Counters.Refused.Add(1)
	_ = w.WriteMsg(failure(query, dns.RcodeRefused))
}

func (s *Server) permitted(address net.Addr) bool {
	if len(s.config.Clients) == 0 {
		return true
	}
	parsed, err := netip.ParseAddrPort(address.String())
	if err != nil {
		return false
	}
	for _, prefix := range s.config.Clients {
		if prefix.Contains(parsed.Addr().Unmap().WithZone("")) {
			return true
		}
	}
	return false
}

// exchange asks the upstream resolvers in order. A truncated answer is asked for again over TCP.
func (s *Server) exchange(ctx context.Context, query *dns.Msg) (*dns.Msg, error) {
	asked := query.Copy()
	asked.Id, asked.RecursionDesired = dns.Id(), true
	if options := asked.IsEdns0(); options != nil {
		options.SetUDPSize(serverSize)
		options.Option = nil // options are between neighbours
	}
	var problems []error
	for _, upstream := range s.config.Upstreams {
		answer, err := s.ask(ctx, "udp", upstream, asked)
		if err == nil && answer.Truncated {
			answer, err = s.ask(ctx, "tcp", upstream, asked)
		}
		if err == nil {
			return answer, nil
		}
		problems = append(problems, err)
	}
	s.Counters.UpstreamErrors.Add(1)
	return nil, errors.Join(problems...)
}

func (s *Server) ask(ctx context.Context, network, upstream string, query *dns.Msg) (*dns.Msg, error) {
	client := dns.Client{Net: network, Timeout: s.config.Timeout, UDPSize: serverSize}
	answer, _, err := client.ExchangeContext(ctx, query, upstream)
	if err != nil {
		return nil, err
	}
	if len(answer.Question) != 1 || answer.Question[0].Qtype != query.Question[0].Qtype || answer.Question[0].Qclass != query.Question[0].Qclass ||
		!dns.IsSubDomain(answer.Question[0].Name, query.Question[0].Name) || dns.CountLabel(answer.Question[0].Name) != dns.CountLabel(query.Question[0].Name) {
		return nil, fmt.Errorf("resolver %s answered another question", upstream)
	}
	return answer, nil
}
