package dataplane

import (
	"bytes"
	"time"

	"golang.zx2c4.com/wireguard/conn"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/wireguard"
)

// handshake is a handshake message that waits.
type handshake struct {
	message  []byte
	endpoint conn.Endpoint
}

// maxHandshake is the length of the longest handshake message.
const maxHandshake = 148

// enqueue keeps a message for the goroutine of handshakes, because they take a hundred times as long as
// packets.
func (d *Dataplane) enqueue(message []byte, endpoint conn.Endpoint) {
	if len(message) > maxHandshake {
		d.counters.notAuthentic.Add(1)
		return
	}
	select {
	case d.queue <- handshake{message: bytes.Clone(message), endpoint: endpoint}:
	default:
		d.counters.handshakesDropped.Add(1)
	}
}

func (d *Dataplane) handshakes() {
	for {
		select {
		case <-d.stop:
			return
		case h := <-d.queue:
			d.handshake(h)
		}
	}
}

func (d *Dataplane) handshake(h handshake) {
	outcome := d.tunnel.Handshake(h.message, h.endpoint.DstToBytes(), len(d.queue) >= underLoad, time.Now())
	if outcome.Peer != nil {
		d.counters.handshakes.Add(1)
		outcome.Peer.Tag().(*peer).moved(h.endpoint)
	} else {
		d.counters.notAuthentic.Add(1)
	}
	if outcome.Reply == nil {
		return
	}
	if err := d.bind.Send([][]byte{outcome.Reply}, h.endpoint); err != nil {
		d.counters.sendErrors.Add(1)
	}
}

// timers does once a second what is due.
func (d *Dataplane) timers() {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-d.stop:
			return
		case <-ticker.C:
		}
		now := time.Now()
		d.tick(now)
	}
}

func (d *Dataplane) tick(now time.Time) {
	if d.nat != nil {
		d.natMu.Lock()
		d.nat.Advance(d.since(now))
		d.natMu.Unlock()
	}
	d.tunnel.Tick(now, initiationsPerSecond, func(datagram wireguard.Datagram) {
		d.transmit(datagram.Peer.Tag().(*peer), [][]byte{datagram.Data})
	})
}
