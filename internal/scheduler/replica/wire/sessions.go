package wire

import (
	"errors"
	"sync"
)

// sessions are the connections by which other replicas tell what they have to. When one
// connects anew, what still comes by its last connection is older, and is not taken.
type sessions struct {
	mu     sync.Mutex
	latest map[string]*session
}

type session struct {
	mu    sync.Mutex
	ended bool
}

var errReplaced = errors.New("the replica has connected anew")

// begin returns when nothing is taken any more of what came before.
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

// end forgets a session, unless there is a later one.
func (s *sessions) end(from string, ended *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.latest[from] == ended {
		delete(s.latest, from)
	}
}

func (s *session) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

// take takes something that was told, unless the session has ended.
func (s *session) take(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return errReplaced
	}
	return f()
}
