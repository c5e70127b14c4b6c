package dataplane

import (
	"encoding/binary"
	"net/netip"
	"time"

	"golang.zx2c4.com/wireguard/conn"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/nat64"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/wireguard"
)

// arrived is a packet that a datagram of a batch contained.
type arrived struct {
	peer   *peer
	packet []byte
	buffer []byte // of the datagram; the packet is in it after offset
}

// inboundBatch has the buffers of a goroutine that reads datagrams.
type inboundBatch struct {
	datagrams [][]byte
	sizes     []int
	endpoints []conn.Endpoint
	arrived   []arrived
	outputs   [][]byte // one for each datagram
	write     [][]byte // packets for the TUN device, after offset
	replies   outgoing
}

func newBuffers(n, size int) [][]byte {
	buffers := make([][]byte, n)
	for i := range buffers {
		buffers[i] = make([]byte, size)
	}
	return buffers
}

// packetSize is the size of buffers for packets.
func (d *Dataplane) packetSize() int {
	if d.config.MTU > joinedSize/2 {
		return bufferSize
	}
	return joinedSize
}

// inbound moves packets from nodes until the socket is closed.
func (d *Dataplane) inbound(receive conn.ReceiveFunc) {
	n := d.bind.BatchSize()
	b := &inboundBatch{
		datagrams: newBuffers(n, bufferSize), sizes: make([]int, n), endpoints: make([]conn.Endpoint, n), outputs: newBuffers(n, d.packetSize()),
	}
	for {
		count, err := receive(b.datagrams, b.sizes, b.endpoints)
		if isClosed(err) || d.closing() {
			return
		}
		if err != nil {
			d.counters.receiveErrors.Add(1)
			if !d.pause() {
				return
			}
			continue
		}
		now := time.Now()
		d.decrypt(b, count, now)
		d.translateOut(b, now)
		d.writeTUN(b.write)
		b.write = b.write[:0]
		d.send(&b.replies, now)
	}
}

// decrypt sorts the datagrams of a batch into packets and handshakes.
func (d *Dataplane) decrypt(b *inboundBatch, count int, now time.Time) {
	b.arrived = b.arrived[:0]
	for i := range count {
		datagram := b.datagrams[i][:b.sizes[i]]
		if !wireguard.IsTransport(datagram) {
			if len(datagram) > 0 {
				d.enqueue(datagram, b.endpoints[i])
			}
			continue
		}
		tunnel, packet := d.tunnel.Open(datagram, now)
		if tunnel == nil {
			d.counters.notAuthentic.Add(1)
			continue
		}
		p := tunnel.Tag().(*peer)
		p.moved(b.endpoints[i])
		if len(packet) > 0 { // otherwise a keepalive
			b.arrived = append(b.arrived, arrived{peer: p, packet: packet, buffer: b.datagrams[i]})
		}
	}
}

// translateOut makes IPv4 packets of the packets of a batch.
func (d *Dataplane) translateOut(b *inboundBatch, now time.Time) {
	d.lockNAT()
	defer d.unlockNAT()
	for i, a := range b.arrived {
		switch version := a.packet[0] >> 4; {
		case version == 6 && d.nat != nil:
			d.translateOne(b, i, a, now)
		case version == 4 && d.config.Masquerade:
			d.masquerade(b, a)
		default:
			d.counters.unexpected.Add(1)
		}
	}
}

func (d *Dataplane) translateOne(b *inboundBatch, i int, a arrived, now time.Time) {
	if len(a.packet) < 40 || !a.peer.owns(netip.AddrFrom16([16]byte(a.packet[8:24]))) {
		d.counters.spoofed.Add(1)
		return
	}
	if d.nodes[a.peer.node] != a.peer {
		return // removed meanwhile
	}
	output := b.outputs[i]
	if len(a.packet) > len(output)-offset { // longer than any packet of the tunnel
		d.counters.unexpected.Add(1)
		return
	}
	result := d.nat.FromIPv6(a.peer.node, a.packet, output[offset:], d.since(now))
	switch result.Action {
	case nat64.Forward:
		b.write = append(b.write, output[:offset+result.Length])
	case nat64.Reply:
		b.replies.add(a.peer, output, result.Length)
	}
}

// masquerade passes an IPv4 packet to the kernel, which masquerades it. The datagram was decrypted in
// place, so that there is room before the packet.
func (d *Dataplane) masquerade(b *inboundBatch, a arrived) {
	if len(a.packet) < 20 || [4]byte(a.packet[12:16]) != a.peer.ipv4 || a.peer.ipv4 == [4]byte{} {
		d.counters.spoofed.Add(1)
		return
	}
	length := int(binary.BigEndian.Uint16(a.packet[2:]))
	if length < 20 || length > len(a.packet) {
		d.counters.unexpected.Add(1)
		return
	}
	a.peer.packetsOut.Add(1)
	a.peer.bytesOut.Add(uint64(length))
	b.write = append(b.write, a.buffer[:offset+length])
}

// writeTUN gives packets to the kernel.
func (d *Dataplane) writeTUN(packets [][]byte) {
	if len(packets) == 0 {
		return
	}
	if _, err := d.tun.Write(packets, offset); err != nil {
		d.counters.writeErrors.Add(1)
	}
}
