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
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"
)

// Responder answers solicitations at a link.
type Responder struct {
	link   string
	socket *Socket // nil while there is none
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
	r := &Responder{link: link, socket: socket, prefix: prefix, except: map[netip.Addr]bool{}}
	for _, a := range except {
		r.except[a] = true
	}
	return r, nil
}

// Counts returns the counts.
func (r *Responder) Counts() Counts {
	return Counts{r.answered.Load(), r.ignored.Load(), r.failed.Load()}
}

// openAgain is the time after which a socket that has failed is opened again.
const openAgain = time.Second

// Run answers until ctx ends, in the namespace of the process. A link that goes down, or away, ends the socket; Run opens another one when
// the link is back.
func (r *Responder) Run(ctx context.Context, log *slog.Logger) {
	failing := false
	for {
		err := r.serve(ctx, func() {
			if failing {
				log.Info("neighbour solicitations are answered again", "link", r.link)
				failing = false
			}
		})
		if ctx.Err() != nil {
			return
		}
		if !failing {
			log.Error("neighbour solicitations are not answered; trying again", "link", r.link, "error", err, "after", openAgain)
			failing = true
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(openAgain):
		}
	}
}

// serve answers until the socket fails or ctx ends, and closes the socket. received is called after solicitations.
func (r *Responder) serve(ctx context.Context, received func()) (err error) {
	if r.socket == nil {
		if r.socket, err = OpenSocket(r.link, r.prefix, false); err != nil {
			return err
		}
	}
	socket := r.socket
	stop := context.AfterFunc(ctx, func() { _ = socket.Close() })
	defer func() {
		if stop() {
			_ = socket.Close()
		}
		r.socket = nil
	}()
	var storage [batch][frameSize]byte
	frames, answers := make([][]byte, 0, batch), make([][]byte, 0, batch)
	for {
		var err error
		frames, err = socket.Receive(frames[:0])
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("receive neighbour solicitations: %w", err)
		}
		received()
		answers = answers[:0]
		for _, frame := range frames {
			if s, ok := r.accepts(frame); ok {
				answers = append(answers, AppendAdvertisement(storage[len(answers)][:0], s, socket.Own))
			}
		}
		// A link that is down takes no frames; Receive says so, too.
		sent, _ := socket.Send(answers)
		r.answered.Add(uint64(sent))
		r.failed.Add(uint64(len(answers) - sent))
		r.ignored.Add(uint64(len(frames) - len(answers)))
	}
}

func (r *Responder) accepts(frame []byte) (Solicitation, bool) {
	s, ok := ParseSolicitation(frame)
	return s, ok && s.From != r.socket.Own && r.prefix.Contains(s.Target) && !r.except[s.Target]
}
