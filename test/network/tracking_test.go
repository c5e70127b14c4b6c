package network

import (
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/k8s-1m/k8s-1m/internal/network/agent"
	"github.com/k8s-1m/k8s-1m/internal/network/netns"
	"github.com/k8s-1m/k8s-1m/internal/network/probe"
)

// track turns on connection tracking in a namespace, as kube-proxy does: the kernel tracks when a rule asks for the state of a
// connection.
func track(t *testing.T, ns *netns.Namespace, more ...expr.Any) {
	t.Helper()
	must(t, ns.Do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv6, Name: "k1m_test"})
		chain := &nftables.Chain{Table: table, Name: "tracked", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter}
		if len(more) > 0 {
			chain.Type, chain.Hooknum, chain.Priority = nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource
		}
		conn.AddChain(chain)
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append([]expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: unix.NFT_REG_1}}, more...)})
		return conn.Flush()
	}))
}

// tracked returns the number of flows that a namespace tracks, and those whose addresses or ports are translated.
func tracked(t *testing.T, ns *netns.Namespace) (all int, translated []string) {
	t.Helper()
	var flows []*netlink.ConntrackFlow
	must(t, ns.Do(func() (err error) {
		flows, err = netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET6)
		return err
	}))
	for _, f := range flows {
		there, back := f.Forward, f.Reverse
		if !there.SrcIP.Equal(back.DstIP) || !there.DstIP.Equal(back.SrcIP) || there.SrcPort != back.DstPort || there.DstPort != back.SrcPort {
			translated = append(translated, f.String())
		}
	}
	return len(flows), translated
}

// The check for translated addresses finds a masquerade.
func TestMasqueradeIsFound(t *testing.T) {
	l := newLab(t, agent.ModeRouted, 1, 1)
	node := l.Nodes()[0]
	pod := node.Pods[0]
	echo(t, l.Internet, internet)
	reaches(t, pod, internet)
	track(t, node.NS, &expr.Masq{})
	client := dial(t, pod.NS, internet)
	defer client.Close()
	seen, err := probe.Ask(client, "hello", patience)
	must(t, err)
	if seen == pod.Address {
		t.Fatalf("the server has seen %s: the masquerade of the test does not work", seen)
	}
	all, translated := tracked(t, node.NS)
	if all == 0 || len(translated) == 0 {
		t.Errorf("the check found %d of %d flows with translated addresses", len(translated), all)
	}
}

const (
	// Confirmed flows that have seen both directions for some time: the kernel does not give them up for new ones.
	statusAssured = 2 | 4 | 8
	flowTimeout   = 600 // seconds
	batchSize     = 200
)

// A full table of connections does not stop pods whose packets are not tracked. Without --no-track, it stops new flows as soon as
// anything on the node asks for the states of connections. The test makes as many flows as the machine allows, so only `make network`
// runs it.
func TestFullConnectionTable(t *testing.T) {
	if os.Getenv("NETWORK_NODES") == "" {
		t.Skip("it fills the table of connections of the machine's size; make network runs it")
	}
	l := newLab(t, agent.ModeRouted, 2, 2)
	echoAll(t, l)
	n, other := l.Nodes()[0], l.Nodes()[1].Pods[0]
	must(t, n.StopAgent(syscall.SIGTERM))
	must(t, n.StartAgent(t.Context(), "--no-track"))
	track(t, n.NS)
	eventually(t, "the agent has bound its pods", func() bool { return metric(t, n, "network_agent_pods") == 2 })
	fillTable(t, n.NS)
	reaches(t, n.Pods[0], other.Address)
	reaches(t, other, n.Pods[1].Address)
	must(t, n.StopAgent(syscall.SIGTERM))
	must(t, n.StartAgent(t.Context()))
	eventually(t, "the agent has bound its pods again", func() bool { return metric(t, n, "network_agent_pods") == 2 })
	client := dial(t, n.Pods[0].NS, other.Address)
	defer client.Close()
	if _, err := probe.Ask(client, "hello", 2*time.Second); err == nil {
		t.Error("a tracked flow passes although the table is full: the test does not test")
	}
}

// fillTable fills the table of connections of a namespace.
func fillTable(t *testing.T, ns *netns.Namespace) {
	t.Helper()
	limit := number64(t, ns, "netfilter/nf_conntrack_max")
	if limit > 1<<20 {
		t.Skipf("the machine allows %d connections, too many for a test", limit)
	}
	must(t, ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for first := 0; first < limit+batchSize; first += batchSize {
			var messages []byte
			for i := range batchSize {
				messages = append(messages, newFlow(first+i)...)
			}
			if err := unix.Sendto(fd, messages, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
				return err
			}
		}
		return nil
	}))
	if count := number64(t, ns, "netfilter/nf_conntrack_count"); count < limit {
		t.Fatalf("the table has %d of %d connections", count, limit)
	}
}

func number64(t *testing.T, ns *netns.Namespace, key string) int {
	t.Helper()
	text, err := ns.ReadSysctl(key)
	must(t, err)
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

// newFlow returns the message that creates a flow with a number.
func newFlow(number int) []byte {
	request := nl.NewNetlinkRequest(int(netlink.ConntrackTable)<<8|nl.IPCTNL_MSG_CT_NEW, unix.NLM_F_CREATE)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET6, Version: nl.NFNETLINK_V0})
	there, back := netip.MustParseAddr("fd00::1").As16(), netip.MustParseAddr("fd00::2").As16()
	there[4], there[5], there[6], there[7] = byte(number>>24), byte(number>>16), byte(number>>8), byte(number)
	request.AddData(tuple(nl.CTA_TUPLE_ORIG, there, back))
	request.AddData(tuple(nl.CTA_TUPLE_REPLY, back, there))
	request.AddData(nl.NewRtAttr(nl.CTA_STATUS, nl.BEUint32Attr(statusAssured)))
	request.AddData(nl.NewRtAttr(nl.CTA_TIMEOUT, nl.BEUint32Attr(flowTimeout)))
	return request.Serialize()
}

// tuple returns one direction of a flow of UDP.
func tuple(kind int, source, target [16]byte) *nl.RtAttr {
	all := nl.NewRtAttr(unix.NLA_F_NESTED|kind, nil)
	ip := all.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil)
	ip.AddRtAttr(nl.CTA_IP_V6_SRC, source[:])
	ip.AddRtAttr(nl.CTA_IP_V6_DST, target[:])
	protocol := all.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
	protocol.AddRtAttr(nl.CTA_PROTO_NUM, []byte{unix.IPPROTO_UDP})
	protocol.AddRtAttr(nl.CTA_PROTO_SRC_PORT, nl.BEUint16Attr(9))
	protocol.AddRtAttr(nl.CTA_PROTO_DST_PORT, nl.BEUint16Attr(9))
	return all
}
