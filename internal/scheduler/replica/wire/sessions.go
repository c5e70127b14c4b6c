package wire

import (
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
}

var errReplaced = errors.New("the replica has opened a newer connection")

// begin starts a session of a replica. When it returns, no batch of an earlier session is
// being processed and none will be.
func (s *sessions) begin(from string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := s.latest[from]; last != nil {
		last.end()
	}
	next := &session{}
	s.latest[from] = next
	return next
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
