package ipv4gateway

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// echoPort is the port of the echo servers.
const echoPort = 7

// udpPacket returns an IPv6 packet with a datagram of 8 bytes.
func udpPacket(source, destination netip.Addr, from, to uint16) []byte {
	const length = 16
	p := make([]byte, 40+length)
	p[0], p[5], p[6], p[7] = 0x60, length, 17, 64
	copy(p[8:], source.AsSlice())
	copy(p[24:], destination.AsSlice())
	binary.BigEndian.PutUint16(p[40:], from)
	binary.BigEndian.PutUint16(p[42:], to)
	binary.BigEndian.PutUint16(p[44:], length)
	sum := uint32(length + 17)
	for i := 8; i < len(p); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(p[46:], ^uint16(sum))
	return p
}

// echo starts servers for UDP and TCP at the server. They end with its namespace.
func (l *lab) echo() error {
	return l.server.Do(func() error {
		packets, err := net.ListenPacket("udp4", serverAddress+":7")
		if err != nil {
			return err
		}
		listener, err := net.Listen("tcp4", serverAddress+":7")
		if err != nil {
			packets.Close()
			return err
		}
		l.closers = append(l.closers, packets, listener)
		go echoUDP(packets)
		go acceptTCP(listener)
		return nil
	})
}

func echoUDP(packets net.PacketConn) {
	buffer := make([]byte, 2048)
	for {
		n, from, err := packets.ReadFrom(buffer)
		if err != nil {
			return
		}
		_, _ = packets.WriteTo(buffer[:n], from) // the client sends again
	}
}

// acceptTCP accepts connections and closes them when the client does.
func acceptTCP(listener net.Listener) {
	for {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			buffer := make([]byte, 16)
			for {
				n, err := c.Read(buffer)
				if err != nil {
					c.Close()
					return
				}
				_, _ = c.Write(buffer[:n])
			}
		}()
	}
}
