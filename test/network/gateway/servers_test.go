package gateway

import (
	"bufio"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/enroll"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/wireguard"
)

// startServers starts the servers for IPv4: an echo of addresses over TCP and UDP (port 7000), and one of
// bytes (port 7001).
func (l *lab) startServers(t *testing.T) {
	t.Helper()
	listen := func(port string) (listener net.Listener) {
		must(t, l.server.Do(func() (err error) {
			listener, err = net.Listen("tcp4", serverAddress+":"+port)
			return err
		}))
		t.Cleanup(func() { listener.Close() })
		return listener
	}
	go acceptAll(listen("7000"), func(c net.Conn) {
		for lines := bufio.NewScanner(c); lines.Scan(); {
			fmt.Fprintf(c, "%v\n", c.RemoteAddr())
		}
	})
	go acceptAll(listen("7001"), func(c net.Conn) { io.Copy(c, c) })
	var packets net.PacketConn
	must(t, l.server.Do(func() (err error) {
		packets, err = net.ListenPacket("udp4", serverAddress+":7000")
		return err
	}))
	t.Cleanup(func() { packets.Close() })
	go echoPackets(packets)
}

func acceptAll(listener net.Listener, serve func(net.Conn)) {
	for {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			serve(c)
		}()
	}
}

func echoPackets(packets net.PacketConn) {
	buffer := make([]byte, 65536)
	for {
		n, from, err := packets.ReadFrom(buffer)
		if err != nil {
			return
		}
		answer := []byte(from.String())
		if n > len(answer) && strings.HasPrefix(string(buffer[:n]), "long") {
			answer = append(answer, make([]byte, n-len(answer))...)
		}
		_, _ = packets.WriteTo(answer, from)
	}
}

// startDNS starts the upstream resolver of DNS64, which knows one name, with an IPv4 address.
func (l *lab) startDNS(t *testing.T) {
	t.Helper()
	var packets net.PacketConn
	must(t, l.gateway.Do(func() (err error) {
		packets, err = net.ListenPacket("udp4", "127.0.0.1:5300")
		return err
	}))
	server := &dns.Server{PacketConn: packets, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) {
		answer := new(dns.Msg)
		answer.SetReply(query)
		if query.Question[0].Qtype == dns.TypeA {
			record, err := dns.NewRR(query.Question[0].Name + " 60 IN A " + serverAddress)
			if err != nil {
				return
			}
			answer.Answer = append(answer.Answer, record)
		}
		_ = w.WriteMsg(answer)
	})}
	go func() { _ = server.ActivateAndServe() }()
	t.Cleanup(func() { packets.Close() })
}

// node is what the gateway tells about a node.
type node struct {
	Name  string
	NAT64 struct{ Sessions, Ports int }
	IPv4  string
}

// nodes returns the connected nodes.
func (l *lab) nodes() (map[string]node, error) {
	body, err := l.page("/nodes")
	if err != nil {
		return nil, err
	}
	var list []node
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, err
	}
	byName := map[string]node{}
	for _, n := range list {
		byName[n.Name] = n
	}
	return byName, nil
}

func (l *lab) page(path string) ([]byte, error) {
	response, err := l.gateway.HTTPClient(5*time.Second, nil).Get("http://127.0.0.1:9547" + path)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// showMetrics logs the metrics of the gateway that are not zero.
func (l *lab) showMetrics(t *testing.T) {
	metrics, err := l.page("/metrics")
	if err != nil {
		t.Log(err)
		return
	}
	for _, line := range strings.Split(string(metrics), "\n") {
		if strings.HasPrefix(line, "network_gateway_") && !strings.HasSuffix(line, " 0") {
			t.Log(line)
		}
	}
}

// register registers with the certificate of a file and a new WireGuard key.
func (l *lab) register(file string) (answer string, err error) {
	pair, err := tls.LoadX509KeyPair(l.file(file+".crt"), l.file(file+".key"))
	if err != nil {
		return "", err
	}
	roots, err := enroll.ReadCertificates(l.file("ca.crt"))
	if err != nil {
		return "", err
	}
	key, err := wireguard.NewPrivateKey(rand.Reader)
	if err != nil {
		return "", err
	}
	client := l.n2.HTTPClient(10*time.Second, &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}})
	response, err := client.Post("https://["+gatewayAddress+"]:8443"+enroll.Path, "application/json", strings.NewReader(`{"publicKey":"`+key.Public().String()+`"}`))
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s: %s", response.Status, body)
	}
	return string(body), err
}
