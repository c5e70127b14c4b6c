package gateway

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// The windows for flow control of Go's HTTP/2 client. They are opened again after windowStep bytes.
	streamWindow     = 4 << 20
	connectionWindow = 1 << 30
	windowStep       = 1 << 20
	headerTableSize  = 4096
	// shortWatch is the time within which the end of a watch without an event counts as an error.
	shortWatch = time.Second
)

var (
	errShortWatch = errors.New("watch ended at once")
	errGoAway     = errors.New("the server asked the client to dial again")
)

// session is a connection of a kubelet with its watches. It is HTTP/2 frame by frame: net/http needs two goroutines for
// each watch, and several times the CPU, which the load generator would take from the servers that it measures.
type session struct {
	kubelet *kubelet
	// phase is the number of the phase in which the kubelet dialed.
	phase  int
	conn   *tls.Conn
	framer *http2.Framer
	// succeeded is true if the kubelet had all its watches on this connection.
	succeeded bool

	// mu is held while a frame is handled, and while a delayed watch is opened.
	mu     sync.Mutex
	out    bytes.Buffer // frames to send
	block  bytes.Buffer // a header block
	header *hpack.Encoder
	// stream is the number of the last stream, and node that of the GET of the Node, or 0.
	stream, node uint32
	watches      [len(kubeletResources)]openWatch
	// missing is the number of answers that the kubelet waits for.
	missing  int
	received uint32
	goneAway bool
}

// openWatch is a watch on a connection.
type openWatch struct {
	stream uint32 // 0 if it is not open
	begun  time.Time
	// state is true until the server has sent the state with which the watch begins.
	state bool
	// status is that of the answer, or of the error that ended the watch; 0 before the answer, and after a reset.
	status     int
	synced     bool
	events     int
	received   uint32
	retryAfter time.Duration
	body       eventSplitter
	// failures is the number of attempts that failed in a row.
	failures int
}

func newSession(k *kubelet, conn *tls.Conn, phase int) *session {
	s := &session{kubelet: k, phase: phase, conn: conn}
	s.framer = http2.NewFramer(&s.out, conn)
	s.framer.SetReuseFrames()
	s.framer.ReadMetaHeaders = hpack.NewDecoder(headerTableSize, nil)
	s.header = hpack.NewEncoder(&s.block)
	return s
}

// serve opens the watches and handles frames until the connection ends.
func (s *session) serve() error {
	err := s.begin()
	for err == nil {
		var frame http2.Frame
		if frame, err = s.framer.ReadFrame(); err == nil {
			err = s.handle(frame)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.goneAway = true
	if s.missing == 0 {
		s.kubelet.group.completed(s.phase, false)
	}
	return err
}

// begin sends everything at once, as Go's client does: it does not wait for the server's settings.
func (s *session) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out.WriteString(http2.ClientPreface)
	err := errors.Join(
		s.framer.WriteSettings(http2.Setting{ID: http2.SettingEnablePush}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow}),
		s.framer.WriteWindowUpdate(0, connectionWindow),
	)
	for i := range s.watches {
		s.missing++
		err = errors.Join(err, s.open(i))
	}
	if s.kubelet.opened != nil && s.kubelet.group.register {
		s.missing++
		s.node = s.nextStream()
		err = errors.Join(err, s.request(s.node, ownNode(s.kubelet.name)))
	}
	return errors.Join(err, s.flush())
}

// nextStream returns the number of a new stream.
func (s *session) nextStream() uint32 {
	s.stream += 2
	return s.stream - 1
}

// request sends a GET in a new stream. Unlike a kubelet it does not accept gzip, with which kube-apiserver compresses
// each event of a watch that began with the state, until the kubelet opens it again after 5 to 10 minutes: most watches of
// a cluster are not compressed, and those of kube-gateway never are.
func (s *session) request(stream uint32, path string) error {
	s.block.Reset()
	for _, field := range [][2]string{
		{":authority", s.kubelet.group.front.addresses[0]}, {":method", http.MethodGet}, {":path", path}, {":scheme", "https"},
		{"accept", protobuf + ",application/json"}, {"user-agent", kubeletAgent},
	} {
		if err := s.header.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}); err != nil {
			return err
		}
	}
	return s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: s.block.Bytes(), EndStream: true, EndHeaders: true})
}

// open opens a watch where the kubelet has watched until now.
func (s *session) open(i int) error {
	if s.goneAway {
		return errGoAway
	}
	before := s.kubelet.watched[i]
	s.watches[i] = openWatch{stream: s.nextStream(), begun: time.Now(), state: !before.synced, failures: s.watches[i].failures}
	return s.request(s.watches[i].stream, kubeletResources[i].watch(s.kubelet.name, before, watchSeconds()))
}

// flush sends the frames that were written.
func (s *session) flush() error {
	if s.out.Len() == 0 {
		return nil
	}
	_, err := s.conn.Write(s.out.Bytes())
	s.out.Reset()
	return err
}

// handle handles a frame of the server.
func (s *session) handle(frame http2.Frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	switch f := frame.(type) {
	case *http2.MetaHeadersFrame:
		err = s.answered(f)
	case *http2.DataFrame:
		err = s.data(f)
	case *http2.RSTStreamFrame:
		if i := s.watch(f.StreamID); i >= 0 {
			s.watches[i].status = 0 // it did not end as a watch does
		}
		err = s.ended(f.StreamID)
	case *http2.SettingsFrame:
		if !f.IsAck() {
			if size, ok := f.Value(http2.SettingHeaderTableSize); ok {
				s.header.SetMaxDynamicTableSizeLimit(size)
			}
			err = s.framer.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			err = s.framer.WritePing(true, f.Data)
		}
	case *http2.GoAwayFrame:
		s.goneAway = true
	}
	return errors.Join(err, s.flush())
}

// watch returns the number of the watch with a stream; -1 if there is none.
func (s *session) watch(stream uint32) int {
	for i := range s.watches {
		if s.watches[i].stream == stream {
			return i
		}
	}
	return -1
}

// answered handles the header of an answer, or a trailer.
func (s *session) answered(f *http2.MetaHeadersFrame) error {
	if i := s.watch(f.StreamID); i >= 0 && s.watches[i].status == 0 {
		w := &s.watches[i]
		w.status, _ = strconv.Atoi(f.PseudoValue("status"))
		for _, field := range f.RegularFields() {
			if seconds, err := strconv.Atoi(field.Value); err == nil && field.Name == "retry-after" {
				w.retryAfter = time.Duration(seconds) * time.Second
			}
		}
		if w.status == http.StatusOK && !w.state {
			s.synced(w)
		}
	}
	if f.StreamEnded() {
		return s.ended(f.StreamID)
	}
	return nil
}

// data handles a part of a body.
func (s *session) data(f *http2.DataFrame) error {
	length := f.Header().Length
	if s.received += length; s.received >= windowStep {
		if err := s.framer.WriteWindowUpdate(0, s.received); err != nil {
			return err
		}
		s.received = 0
	}
	if i := s.watch(f.StreamID); i >= 0 {
		w := &s.watches[i]
		if w.received += length; w.received >= windowStep {
			if err := s.framer.WriteWindowUpdate(f.StreamID, w.received); err != nil {
				return err
			}
			w.received = 0
		}
		if w.status == http.StatusOK {
			if err := w.body.split(f.Data(), func(event []byte) error { return s.event(i, event) }); err != nil {
				return err
			}
		}
	}
	if f.StreamEnded() {
		return s.ended(f.StreamID)
	}
	return nil
}

// event handles an event of a watch.
func (s *session) event(i int, event []byte) error {
	w := &s.watches[i]
	w.events++
	switch eventType(event) {
	case watch.Modified:
		s.kubelet.group.modified.Add(1)
	case watch.Bookmark:
		version, endsState, err := bookmark(event)
		if err != nil {
			return err
		}
		s.kubelet.watched[i].version = version
		if w.state && endsState {
			w.state, s.kubelet.watched[i].synced = false, true
			s.synced(w)
		}
	case watch.Error:
		status, err := eventStatus(event)
		if err != nil {
			return err
		}
		w.status = status
	}
	return nil
}

// synced records that the kubelet has what it asked for with a watch.
func (s *session) synced(w *openWatch) {
	w.synced, w.failures = true, 0
	s.got()
}

// got records an answer that the kubelet waited for.
func (s *session) got() {
	s.missing--
	if s.missing > 0 {
		return
	}
	s.succeeded = true
	s.kubelet.group.completed(s.phase, true)
	if s.kubelet.opened != nil {
		s.kubelet.opened()
		s.kubelet.opened = nil
	}
}

// ended goes on after the end of a stream, as a reflector does.
func (s *session) ended(stream uint32) error {
	if stream == s.node && stream != 0 {
		s.node = 0
		s.got()
		return nil
	}
	i := s.watch(stream)
	if i < 0 {
		return nil
	}
	w := &s.watches[i]
	if w.synced {
		if s.missing++; s.missing == 1 {
			s.kubelet.group.completed(s.phase, false)
		}
	}
	failure := w.failure(time.Now())
	if failure == nil {
		return s.open(i)
	}
	if w.status == http.StatusGone {
		s.kubelet.watched[i] = w.expired(s.kubelet.watched[i])
	}
	s.kubelet.group.failed(failure)
	w.stream, w.synced = 0, false
	w.failures++
	s.openLater(i, w.delay())
	return nil
}

// failure returns why a watch that has ended was none; nil if it was one.
func (w *openWatch) failure(now time.Time) error {
	switch {
	case w.status == 0:
		return io.ErrUnexpectedEOF
	case w.status != http.StatusOK:
		return statusError(w.status)
	case w.events == 0 && now.Sub(w.begun) < shortWatch:
		return errShortWatch
	}
	return nil
}

// delay returns the time after which a watch that failed is tried again.
func (w *openWatch) delay() time.Duration {
	if w.retryAfter > 0 && w.failures <= askedRetries {
		return w.retryAfter
	}
	return retryDelay(w.failures)
}

// expired returns where a watch begins that the server refused because its version is too old: with the state at that
// version or later and, if that is refused too, with the state of now.
func (w *openWatch) expired(before watched) watched {
	if !before.synced {
		return watched{}
	}
	return watched{version: before.version}
}

// openLater opens a watch after a delay. If that fails, the connection ends, and the kubelet dials again.
func (s *session) openLater(i int, delay time.Duration) {
	time.AfterFunc(delay, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if errors.Join(s.open(i), s.flush()) != nil {
			_ = s.conn.NetConn().Close()
		}
	})
}
