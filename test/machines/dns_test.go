package machines

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/k8s-1m/k8s-1m/test/ownnetwork"
)

// serveDNS answers the queries of pods for Services, NAME.NAMESPACE.svc.cluster.local, in place of CoreDNS.
func serveDNS(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	socket, err := net.ListenPacket("udp", ownnetwork.Address+":53")
	must(t, err)
	t.Cleanup(func() { _ = socket.Close() })
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			if answer, err := resolve(ctx, client, buffer[:n]); err == nil {
				_, _ = socket.WriteTo(answer, from)
			}
		}
	}()
}

// resolve returns the answer to a query.
func resolve(ctx context.Context, client kubernetes.Interface, query []byte) ([]byte, error) {
	var message dnsmessage.Message
	if err := message.Unpack(query); err != nil || len(message.Questions) != 1 {
		return nil, err
	}
	question := message.Questions[0]
	message.Response, message.Authoritative, message.Additionals = true, true, nil
	address, found := addressOf(ctx, client, question.Name.String())
	switch {
	case !found:
		message.RCode = dnsmessage.RCodeNameError
	case question.Type == dnsmessage.TypeA:
		message.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: 1},
			Body:   &dnsmessage.AResource{A: address.As4()},
		}}
	}
	return message.Pack()
}

// addressOf returns the address of a Service by its name in the DNS.
func addressOf(ctx context.Context, client kubernetes.Interface, name string) (netip.Addr, bool) {
	service, found := strings.CutSuffix(name, ".svc.cluster.local.")
	parts := strings.Split(service, ".")
	if !found || len(parts) != 2 {
		return netip.Addr{}, false
	}
	object, err := client.CoreV1().Services(parts[1]).Get(ctx, parts[0], metav1.GetOptions{})
	if err != nil {
		return netip.Addr{}, false
	}
	address, err := netip.ParseAddr(object.Spec.ClusterIP)
	return address, err == nil
}
