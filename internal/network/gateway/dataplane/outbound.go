package dataplane

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.zx2c4.com/wireguard/tun"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/nat64"
)

// outgoing collects packets for nodes. Packets for one node that follow each other are sent together.
type outgoing struct {
	packets []outgoingPacket
	sealed  [][]byte
}

// outgoingPacket is a packet in buffer[offset:offset+length].
type outgoingPacket struct {
	peer   *peer
	buffer []byte
	length int
}

func (o *outgoing) add(p *peer, buffer []byte, length int) {
	o.packets = append(o.packets, outgoingPacket{peer: p, buffer: buffer, length: length})
}

// outbound moves packets from the TUN device until it is closed.
func (d *Dataplane) outbound() {
	n := d.tun.BatchSize()
	inputs, outputs, sizes := newBuffers(n, d.packetSize()), newBuffers(n, d.packetSize()), make([]int, n)
	var packets outgoing
	var replies [][]byte
	for {
		count, err := d.tun.Read(inputs, sizes, offset)
		if errors.Is(err, tun.ErrTooManySegments) {
			d.counters.tooManySegments.Add(1)
			err = nil
		}
		if err != nil {
			if !d.closing() && !errors.Is(err, os.ErrClosed) {
				d.fail(fmt.Errorf("read from the TUN device: %w", err))
			}
			return
		}
		now := time.Now()
		d.mu.RLock()
		d.lockNAT()
		for i := range count {
			input := inputs[i][:offset+sizes[i]]
			if reply := d.route(&packets, input, inputs[i], outputs[i], now); reply != nil {
				replies = append(replies, reply)
			}
		}
		d.unlockNAT()
		d.mu.RUnlock()
		d.send(&packets, now)
		d.writeTUN(replies)
		replies = replies[:0]
	}
}

func (d *Dataplane) lockNAT() {
	if d.nat != nil {
		d.natMu.Lock()
	}
}

func (d *Dataplane) unlockNAT() {
	if d.nat != nil {
		d.natMu.Unlock()
	}
}

// route finds the node of a packet from IPv4. A reply is for the TUN device.
func (d *Dataplane) route(packets *outgoing, input, buffer, output []byte, now time.Time) (reply []byte) {
	packet := input[offset:]
	if len(packet) < 20 || packet[0]>>4 != 4 {
		d.counters.unexpected.Add(1) // neighbour discovery of the kernel
		return nil
	}
	if p := d.byIPv4[[4]byte(packet[16:20])]; p != nil {
		p.packetsIn.Add(1)
		p.bytesIn.Add(uint64(len(packet)))
		packets.add(p, buffer, len(packet))
		return nil
	}
	if d.nat == nil {
		d.counters.unexpected.Add(1)
		return nil
	}
	result := d.nat.FromIPv4(packet, output[offset:], d.since(now))
	switch result.Action {
	case nat64.Forward:
		if p := d.nodes[result.Node]; p != nil {
			packets.add(p, output, result.Length)
		}
	case nat64.Reply:
		return output[:offset+result.Length]
	}
	return nil
}

// send encrypts and sends packets, and empties the collection.
func (d *Dataplane) send(o *outgoing, now time.Time) {
	for start := 0; start < len(o.packets); {
		p := o.packets[start].peer
		end := start
		o.sealed = o.sealed[:0]
		for end < len(o.packets) && o.packets[end].peer == p && len(o.sealed) < d.bind.BatchSize() {
			packet := o.packets[end]
			if datagram := d.tunnel.Seal(p.tunnel, packet.buffer, packet.length, now); datagram != nil {
				o.sealed = append(o.sealed, datagram)
			} else {
				d.counters.noKeys.Add(1)
			}
			end++
		}
		d.transmit(p, o.sealed)
		start = end
	}
	o.packets = o.packets[:0]
}

func (d *Dataplane) transmit(p *peer, datagrams [][]byte) {
	endpoint := p.endpoint.Load()
	if len(datagrams) == 0 || endpoint == nil {
		return
	}
	if err := d.bind.Send(datagrams, endpoint); err != nil {
		d.counters.sendErrors.Add(1)
	}
}
