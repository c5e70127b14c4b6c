// Package capture records the frames that pass a link, so that tests and measurements can assert what is on the wire.
package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/k8s-1m/k8s-1m/internal/network/netns"
)

// Protocol numbers.
const (
	EtherTypeIPv6 = 0x86dd
	TCP           = 6
	UDP           = 17
	ICMP6         = 58
)

// PacketTooBig is a type of ICMPv6 messages.
const PacketTooBig = 2

// Packet is a frame with the header fields that are asserted.
type Packet struct {
	SourceMAC, TargetMAC [6]byte
	EtherType            uint16
	// Source and Target are the addresses, Protocol is the last header of IPv6 before the data that has one of the numbers above.
	// They are zero if the frame is not IPv6.
	Source, Target netip.Addr
	Protocol       uint8
	// SourcePort and TargetPort are those of TCP and UDP, Type and Code those of ICMPv6.
	SourcePort, TargetPort uint16
	Type, Code             uint8
	// Payload is the data behind the header of TCP-less protocols: of UDP and ICMPv6. It is cut off after 256 bytes.
	Payload []byte
	// Length of the frame.
	Length int
}

const (
	ethernetSize = 14
	ipv6Size     = 40
	transport    = 8 // the least size of the headers of UDP and ICMPv6
	maxPayload   = 256
	snapLength   = ethernetSize + ipv6Size + transport + maxPayload
	// receiveBuffer holds what arrives while the reader does not run.
	receiveBuffer = 32 << 20
)

// Parse parses the beginning of a frame.
func Parse(frame []byte, length int) (p Packet, ok bool) {
	if len(frame) < ethernetSize {
		return p, false
	}
	copy(p.TargetMAC[:], frame)
	copy(p.SourceMAC[:], frame[6:])
	p.EtherType, p.Length = binary.BigEndian.Uint16(frame[12:]), length
	ip := frame[ethernetSize:]
	if p.EtherType != EtherTypeIPv6 || len(ip) < ipv6Size {
		return p, true
	}
	p.Source, p.Target = netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40]))
	p.Protocol = ip[6]
	rest := ip[ipv6Size:]
	if len(rest) < transport {
		return p, true
	}
	switch p.Protocol {
	case TCP, UDP:
		p.SourcePort, p.TargetPort = binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
	case ICMP6:
		p.Type, p.Code = rest[0], rest[1]
	}
	if p.Protocol != TCP {
		p.Payload = append([]byte{}, rest[transport:min(len(rest), transport+maxPayload)]...)
	}
	return p, true
}

// Capture records packets at a link until Stop.
type Capture struct {
	file  *os.File
	ended chan struct{}

	mu      sync.Mutex
	packets []Packet
	most    int
	missed  int
}

// Start records at most some packets, in both directions, at a link of a namespace.
func Start(ns *netns.Namespace, link string, most int) (*Capture, error) {
	c := &Capture{ended: make(chan struct{}), most: most}
	err := ns.Do(func() error {
		device, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
		protocol := uint16(unix.ETH_P_ALL)
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol>>8 | protocol<<8, Ifindex: device.Index})
		if err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		c.file = os.NewFile(uintptr(fd), "capture")
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("capture at %s in %s: %w", link, ns.Name(), err)
	}
	go c.run()
	return c, nil
}

func (c *Capture) run() {
	defer close(c.ended)
	raw, err := c.file.SyscallConn()
	if err != nil {
		return
	}
	frame := make([]byte, snapLength)
	for {
		var received bool
		if err := raw.Read(func(fd uintptr) bool {
			received = c.receive(int(fd), frame)
			return received
		}); err != nil {
			return
		}
	}
}

// receive records the next frame that the socket has. It returns false if it has none.
func (c *Capture) receive(fd int, frame []byte) bool {
	// With MSG_TRUNC the result is the length of the frame, also if it is cut off.
	length, _, err := unix.Recvfrom(fd, frame, unix.MSG_TRUNC)
	if err != nil {
		return !errors.Is(err, unix.EAGAIN) // otherwise the link is down, which is reported once
	}
	if p, ok := Parse(frame[:min(length, len(frame))], length); ok {
		c.add(p)
	}
	return true
}

func (c *Capture) add(p Packet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.packets) >= c.most {
		c.missed++
		return
	}
	c.packets = append(c.packets, p)
}

// Packets returns what was recorded until now.
func (c *Capture) Packets() []Packet {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Packet{}, c.packets...)
}

// Stop ends the recording and returns all packets. It is an error if some are missing.
func (c *Capture) Stop() ([]Packet, error) {
	if err := c.file.SetReadDeadline(time.Now()); err != nil {
		return nil, errors.Join(err, c.file.Close())
	}
	<-c.ended
	lost, err := c.drain()
	err = errors.Join(err, c.file.Close())
	if lost += c.missed; lost > 0 {
		err = errors.Join(err, fmt.Errorf("%d packets were not recorded", lost))
	}
	return c.packets, err
}

// drain records the packets that wait in the socket, and returns the number of those that did not fit into it.
func (c *Capture) drain() (lost int, err error) {
	raw, err := c.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		// What is on the link meanwhile does not keep it from ending.
		frame := make([]byte, snapLength)
		for range c.most {
			if !c.receive(int(fd), frame) {
				break
			}
		}
		var stats *unix.TpacketStats
		if stats, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			lost = int(stats.Drops)
		}
	})
	return lost, errors.Join(err, controlErr)
}

// Select returns the packets for which a condition is true.
func Select(packets []Packet, condition func(Packet) bool) (selected []Packet) {
	for _, p := range packets {
		if condition(p) {
			selected = append(selected, p)
		}
	}
	return selected
}
