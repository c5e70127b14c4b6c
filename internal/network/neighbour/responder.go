// Package neighbour answers neighbour solicitations (RFC 4861) for all addresses of a prefix, as a provider expects it that delivers
// packets for a node's prefix to its link. The kernel's own proxy knows single addresses only, and ndppd keeps a session for each
// address; here an answer needs no state, so a prefix of 2^32 addresses costs what one address costs.
//
// message.go has the messages and is pure, program.go the filter that the kernel applies before it wakes this process,
// socket.go the frames, responder.go connects them.
package neighbour

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
)

// Responder answers solicitations at a link.
type Responder struct {
	socket *Socket
	prefix netip.Prefix
	// except are addresses for which the kernel answers itself.
	except map[netip.Addr]bool

	answered, ignored, failed atomic.Uint64
}

// Counts are the numbers of frames since the start of a responder.
type Counts struct {
	// Answered solicitations; Ignored: invalid ones, and those for addresses of the node itself; Failed: answers that the
	// kernel did not take.
	Answered, Ignored, Failed uint64
}

// NewResponder opens a responder for a prefix in the namespace of the calling thread.
func NewResponder(link string, prefix netip.Prefix, except ...netip.Addr) (*Responder, error) {
	if !prefix.IsValid() {
		return nil, errors.New("neighbour answers need a prefix")
	}
	socket, err := OpenSocket(link, prefix, false)
	if err != nil {
		return nil, err
	}
	r := &Responder{socket: socket, prefix: prefix, except: map[netip.Addr]bool{}}
	for _, a := range except {
		r.except[a] = true
	}
	return r, nil
}

// Counts returns the counts.
func (r *Responder) Counts() Counts {
	return Counts{r.answered.Load(), r.ignored.Load(), r.failed.Load()}
}

// Run answers until ctx ends. It closes the socket.
func (r *Responder) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = r.socket.Close() })
	defer func() {
		if stop() {
			_ = r.socket.Close()
		}
	}()
	var storage [batch][frameSize]byte
	frames, answers := make([][]byte, 0, batch), make([][]byte, 0, batch)
	for {
		var err error
		frames, err = r.socket.Receive(frames[:0])
		switch {
		case ctx.Err() != nil || errors.Is(err, os.ErrClosed):
			return nil
		case err != nil:
			return fmt.Errorf("receive neighbour solicitations: %w", err)
		}
		answers = answers[:0]
		for _, frame := range frames {
			if s, ok := r.accepts(frame); ok {
				answers = append(answers, AppendAdvertisement(storage[len(answers)][:0], s, r.socket.Own))
			}
		}
		sent, err := r.socket.Send(answers)
		r.answered.Add(uint64(sent))
		r.failed.Add(uint64(len(answers) - sent))
		r.ignored.Add(uint64(len(frames) - len(answers)))
		// A link that is down takes no frames; it may come back.
		if err != nil && ctx.Err() == nil && errors.Is(err, os.ErrClosed) {
			return fmt.Errorf("send neighbour advertisements: %w", err)
		}
	}
}

func (r *Responder) accepts(frame []byte) (Solicitation, bool) {
	s, ok := ParseSolicitation(frame)
	return s, ok && s.From != r.socket.Own && r.prefix.Contains(s.Target) && !r.except[s.Target]
}
