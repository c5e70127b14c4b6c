package wire

import (
	"context"
	"errors"
	"sync"
)

// sessions has the latest incoming connection of each replica. After a replica has connected again,
// batches that still arrive on its earlier connection are rejected, because they are outdated.
type sessions struct {
	mu     sync.Mutex
	latest map[string]*session
}

// session is one incoming connection.
type session struct {
	mu    sync.Mutex
	ended bool
	// onEnd is called when a later session replaces this one.
	onEnd func()
}

var errReplaced = errors.New("the replica has opened a newer connection")

// begin starts a session of a replica. When it returns, no batch of an earlier session is
// being processed and none will be. It waits for a batch of this replica only: the batch of one replica, which may
// take long, does not delay the connections of others. onEnd is called when a later session begins. A connection
// whose context has ended gets an error: the sender has opened a later one, whose session may have begun already.
func (s *sessions) begin(ctx context.Context, from string, onEnd func()) (*session, error) {
	next := &session{onEnd: onEnd}
	// A still later session waits for this one, and so for the earlier one too.
	next.mu.Lock()
	defer next.mu.Unlock()
	s.mu.Lock()
	if err := ctx.Err(); err != nil {
		s.mu.Unlock()
		return nil, err
	}
	last := s.latest[from]
	s.latest[from] = next
	s.mu.Unlock()
	if last != nil {
		last.end()
	}
	return next, nil
}

// end removes a session, unless a later one has replaced it.
func (s *sessions) end(from string, ended *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.latest[from] == ended {
		delete(s.latest, from)
	}
}

// end waits until no batch of the session is being processed, and rejects further ones.
func (s *session) end() {
	s.onEnd()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

// process calls f, or returns an error if the session has ended.
func (s *session) process(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return errReplaced
	}
	return f()
}
