package webhook

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	admission "k8s.io/api/admission/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

const (
	// The API server takes 3 MiB at most, and adds a little.
	maxBody = 4 << 20
	// Requests that are read at a time. Beyond it only the UID is read, which the
	// answer needs, and the pod is left to the watch.
	maxReading = 256
	// Pods that wait to be handed on, by number and by bytes. What comes beyond is left
	// to the watch.
	maxWaiting      = 4096
	maxWaitingBytes = 64 << 20
	// An API server has one connection. More than this are closed at once, as one that
	// waits would hold somebody up.
	maxConnections = 512
	maxStreams     = 4096

	// An API server that takes longer has given up.
	readTimeout = 5 * time.Second
	idleTimeout = 2 * time.Minute
)

// Why a pod is left to the watch.
const (
	dropOverload  = "overload"
	dropMalformed = "malformed"
	dropForeign   = "foreign"
	dropDryRun    = "dry_run"
)

// server answers AdmissionReviews, and hands on the pods in them.
type server struct {
	path    string
	take    func(*v1.Pod)
	drop    func(reason string)
	reading chan struct{}
	waiting chan []byte
	bytes   atomic.Int64
}

func newServer(path string, take func(*v1.Pod), drop func(reason string)) *server {
	return &server{
		path: path, take: take, drop: drop,
		reading: make(chan struct{}, maxReading), waiting: make(chan []byte, maxWaiting),
	}
}

// serve answers until ctx ends.
func (s *server) serve(ctx context.Context, listener net.Listener, secure *tls.Config) error {
	web := &http.Server{
		Handler: s, TLSConfig: secure, ErrorLog: log.New(quietly{klog.FromContext(ctx)}, "", 0),
		ReadTimeout: readTimeout, WriteTimeout: readTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: 1 << 16,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
	}
	var handing sync.WaitGroup
	for range max(2, runtime.GOMAXPROCS(0)/2) {
		handing.Go(func() { s.handOn(ctx) })
	}
	handing.Go(func() {
		<-ctx.Done()
		_ = web.Close()
	})
	defer handing.Wait()
	return web.ServeTLS(&limited{Listener: listener}, "", "")
}

// ServeHTTP allows whatever is asked, and tells a caller that is no API server what is
// wrong.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path != s.path:
		http.Error(w, "not found: the webhook's configuration has the path", http.StatusNotFound)
		return
	case r.Method != http.MethodPost:
		http.Error(w, "send an AdmissionReview by POST", http.StatusMethodNotAllowed)
		return
	case !strings.HasPrefix(r.Header.Get("Content-Type"), "application/json"):
		http.Error(w, "send an AdmissionReview as application/json", http.StatusUnsupportedMediaType)
		return
	}
	body := http.MaxBytesReader(w, r.Body, maxBody)
	uid, err := s.receive(body)
	if err != nil {
		code := http.StatusBadRequest
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			code = http.StatusRequestEntityTooLarge
		}
		s.drop(dropMalformed)
		http.Error(w, oneLine(err), code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// Whoever asked may have gone.
	_ = json.NewEncoder(w).Encode(admission.AdmissionReview{
		TypeMeta: review, Response: &admission.AdmissionResponse{UID: uid, Allowed: true},
	})
}

var review = metav1.TypeMeta{APIVersion: admission.SchemeGroupVersion.String(), Kind: "AdmissionReview"}

// receive reads a review, has its pod handed on if it is one, and returns what the
// answer needs.
func (s *server) receive(body io.Reader) (types.UID, error) {
	select {
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
	default:
		s.drop(dropOverload)
		return uidOf(body)
	}
	content, err := io.ReadAll(body)
	if err != nil {
		return "", fmt.Errorf("reading the AdmissionReview: %w", err)
	}
	var asked admission.AdmissionReview
	if err := json.Unmarshal(content, &asked); err != nil {
		return "", fmt.Errorf("not an AdmissionReview: %w", err)
	}
	if asked.TypeMeta != review || asked.Request == nil || asked.Request.UID == "" {
		return "", fmt.Errorf("not an AdmissionReview of %s with a request and its uid", review.APIVersion)
	}
	if reason := s.accept(asked.Request); reason != "" {
		s.drop(reason)
	}
	return asked.Request.UID, nil
}

// accept has a pod handed on, or says why not.
func (s *server) accept(request *admission.AdmissionRequest) (reason string) {
	pods := metav1.GroupVersionResource{Version: "v1", Resource: "pods"}
	size := int64(len(request.Object.Raw))
	switch {
	case request.DryRun != nil && *request.DryRun:
		return dropDryRun
	case request.Operation != admission.Create || request.Resource != pods || request.SubResource != "" || size == 0:
		return dropForeign
	case s.bytes.Add(size) > maxWaitingBytes:
		s.bytes.Add(-size)
		return dropOverload
	}
	select {
	case s.waiting <- request.Object.Raw:
		return ""
	default:
		s.bytes.Add(-size)
		return dropOverload
	}
}

// handOn reads pods, after their API servers have been answered.
func (s *server) handOn(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case raw := <-s.waiting:
			s.bytes.Add(-int64(len(raw)))
			pod := &v1.Pod{}
			if err := json.Unmarshal(raw, pod); err != nil {
				klog.FromContext(ctx).V(2).Info("Leaving a pod to the watch that cannot be read", "err", oneLine(err))
				s.drop(dropMalformed)
				continue
			}
			s.take(pod)
		}
	}
}

// uidOf reads a review only so far as its answer needs.
func uidOf(body io.Reader) (types.UID, error) {
	decoder := json.NewDecoder(body)
	for _, key := range []string{"request", "uid"} {
		if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
			return "", errors.New("not an AdmissionReview with a request and its uid")
		}
		if err := seek(decoder, key); err != nil {
			return "", err
		}
	}
	var uid types.UID
	if err := decoder.Decode(&uid); err != nil || uid == "" {
		return "", errors.New("not an AdmissionReview with a request and its uid")
	}
	return uid, nil
}

// seek goes to the value of a key of the object that it is in.
func seek(decoder *json.Decoder, key string) error {
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return fmt.Errorf("not an AdmissionReview: %w", err)
		}
		if token == key {
			return nil
		}
		var other json.RawMessage
		if err := decoder.Decode(&other); err != nil {
			return fmt.Errorf("not an AdmissionReview: %w", err)
		}
	}
	return fmt.Errorf("not an AdmissionReview: it has no %s", key)
}

// oneLine keeps what others send from making lines of its own.
func oneLine(err error) string {
	const longest = 200
	line := strings.Join(strings.Fields(err.Error()), " ")
	return line[:min(len(line), longest)]
}

// limited closes connections beyond a number.
type limited struct {
	net.Listener
	open atomic.Int64
}

// Accept waits for a connection that there is room for.
func (l *limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= maxConnections {
			return &counted{Conn: conn, left: sync.OnceFunc(func() { l.open.Add(-1) })}, nil
		}
		l.open.Add(-1)
		_ = conn.Close()
	}
}

type counted struct {
	net.Conn
	left func()
}

// Close makes room for another.
func (c *counted) Close() error {
	defer c.left()
	return c.Conn.Close()
}

// quietly logs what goes wrong with connections for those who look for it: anybody
// can make it go wrong.
type quietly struct{ logger klog.Logger }

// Write logs a line.
func (q quietly) Write(line []byte) (int, error) {
	q.logger.V(4).Info("A connection to the webhook failed", "err", strings.TrimSpace(string(line)))
	return len(line), nil
}
