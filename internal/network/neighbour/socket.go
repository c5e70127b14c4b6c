package neighbour

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	// batch is the number of frames that one system call receives or sends.
	batch = 64
	// receiveBuffer holds the frames of bursts. Frames beyond it are lost, and routers ask again.
	receiveBuffer = 4 << 20
)

// message is struct mmsghdr.
type message struct {
	header unix.Msghdr
	length uint32
	_      [4]byte
}

// Socket sends and receives whole Ethernet frames at a link, many with one system call. Its methods must not be called at
// the same time, except Close.
type Socket struct {
	file *os.File
	raw  syscall.RawConn
	// Index and Own are the number and the Ethernet address of the link.
	Index int
	Own   MAC

	in, out           [batch]message
	inParts, outParts [batch]unix.Iovec
	frames            [batch][2048]byte
}

// OpenSocket opens a socket in the namespace of the calling thread. If prefix is valid, it receives neighbour solicitations, or
// with advertisements set advertisements, for the addresses in it; otherwise nothing.
func OpenSocket(link string, prefix netip.Prefix, advertisements bool) (*Socket, error) {
	device, err := net.InterfaceByName(link)
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", link, err)
	}
	if len(device.HardwareAddr) != 6 {
		return nil, fmt.Errorf("link %s has no Ethernet address; choose the link to the provider", link)
	}
	// With protocol 0 the socket receives nothing before it has its filter and its link.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w; the capability NET_RAW is needed", err)
	}
	s := &Socket{Index: device.Index, Own: MAC(device.HardwareAddr)}
	if err := s.configure(fd, prefix, advertisements); err != nil {
		return nil, errors.Join(fmt.Errorf("packet socket at %s: %w", link, err), unix.Close(fd))
	}
	s.file = os.NewFile(uintptr(fd), "packet socket")
	if s.raw, err = s.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, s.file.Close())
	}
	for i := range s.in {
		s.inParts[i] = unix.Iovec{Base: &s.frames[i][0], Len: uint64(len(s.frames[i]))}
		s.in[i].header = unix.Msghdr{Iov: &s.inParts[i], Iovlen: 1}
		s.out[i].header = unix.Msghdr{Iov: &s.outParts[i], Iovlen: 1}
	}
	return s, nil
}

func (s *Socket) configure(fd int, prefix netip.Prefix, advertisements bool) error {
	// Frames of other programs on this machine, and our own, are not for us.
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
		return err
	}
	// Large bursts need more than net.core.rmem_max; without NET_ADMIN the buffer stays small.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
	protocol := uint16(0)
	if prefix.IsValid() {
		messageType := byte(typeSolicitation)
		if advertisements {
			messageType = typeAdvertisement
		}
		instructions, err := program(messageType, prefix)
		if err != nil {
			return err
		}
		if err := attach(fd, instructions); err != nil {
			return err
		}
		// Solicitations go to 2^24 multicast addresses.
		all := unix.PacketMreq{Ifindex: int32(s.Index), Type: unix.PACKET_MR_ALLMULTI}
		if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &all); err != nil {
			return err
		}
		protocol = etherTypeIPv6>>8 | etherTypeIPv6&0xff<<8 // in the order of the network
	}
	return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: s.Index})
}

// attach attaches a filter to a socket.
func attach(fd int, instructions []bpf.RawInstruction) error {
	filter := make([]unix.SockFilter, len(instructions))
	for i, in := range instructions {
		filter[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// Close closes the socket. A Receive that waits returns an error.
func (s *Socket) Close() error { return s.file.Close() }

// SetReadDeadline sets the time after which Receive returns an error.
func (s *Socket) SetReadDeadline(t time.Time) error { return s.file.SetReadDeadline(t) }

// Receive waits for frames and returns those that have arrived. They are valid until the next call. reuse is appended to.
func (s *Socket) Receive(reuse [][]byte) ([][]byte, error) {
	count, err := s.call(false, unix.SYS_RECVMMSG, &s.in, batch)
	for i := range count {
		reuse = append(reuse, s.frames[i][:min(int(s.in[i].length), len(s.frames[i]))])
	}
	return reuse, err
}

// Send sends frames, and returns the number of those that the kernel took. Frames that do not fit into the queue of the link
// are lost.
func (s *Socket) Send(frames [][]byte) (sent int, err error) {
	for sent < len(frames) {
		now := frames[sent:min(len(frames), sent+batch)]
		for i, frame := range now {
			s.outParts[i] = unix.Iovec{Base: &frame[0], Len: uint64(len(frame))}
		}
		count, err := s.call(true, unix.SYS_SENDMMSG, &s.out, len(now))
		sent += count
		if errors.Is(err, unix.ENOBUFS) {
			return sent, nil
		}
		if err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// call receives or sends messages, and waits until that is possible.
func (s *Socket) call(write bool, number uintptr, messages *[batch]message, count int) (done int, err error) {
	var failure error
	try := func(fd uintptr) bool {
		for {
			n, _, errno := unix.Syscall6(number, fd, uintptr(unsafe.Pointer(&messages[0])), uintptr(count), unix.MSG_DONTWAIT, 0, 0)
			switch errno {
			case 0:
				done = int(n)
			case unix.EINTR:
				continue
			case unix.EAGAIN:
				return false
			default:
				failure = errno
			}
			return true
		}
	}
	if write {
		err = s.raw.Write(try)
	} else {
		err = s.raw.Read(try)
	}
	runtime.KeepAlive(messages)
	return done, errors.Join(err, failure)
}
