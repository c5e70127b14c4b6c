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

	"github.com/k8s-1m/k8s-1m/internal/scheduler/connlimit"
)

const (
	// maxBody is the maximal size of a request in bytes. The API server accepts objects of up
	// to 3 MiB.
	maxBody = 4 << 20
	// maxReading is the number of requests that are read completely at the same time. Beyond it,
	// only the UID of a request is read, which the response needs, and its pod is dropped.
	maxReading = 256
	// At most maxWaiting pods with maxWaitingBytes bytes in total are queued. Further pods are
	// dropped.
	maxWaiting      = 4096
	maxWaitingBytes = 64 << 20
	// Connections beyond maxConnections are closed immediately, because requests on a connection
	// that waits would delay the creation of pods. An API server uses one connection.
	maxConnections = 512
	maxStreams     = 4096

	// readTimeout bounds reading a request and writing its response. It exceeds the API server's
	// timeout (timeoutSeconds), after which the API server no longer waits for the response.
	readTimeout = 5 * time.Second
	idleTimeout = 2 * time.Minute
	// clientLogInterval is the shortest time between two log messages about rejected clients.
	clientLogInterval = 10 * time.Second
)

// Reasons for which a pod is dropped. The scheduler then receives it from the watch.
const (
	dropOverload  = "overload"
	dropMalformed = "malformed"
	dropForeign   = "foreign"
	dropDryRun    = "dry_run"
	// dropUnauthenticated: the client is not an API server, or the API server has no client certificate.
	dropUnauthenticated = "unauthenticated"
)

// handler answers AdmissionReviews, and queues the pods in them for take.
type handler struct {
	path string
	// clients decides who may send reviews.
	clients *clients
	take    func(*v1.Pod)
	drop    func(reason string)
	// clientLogged is the time at which a rejected client was last logged, in Unix nanoseconds.
	clientLogged atomic.Int64
	// reading is a semaphore with maxReading places.
	reading chan struct{}
	// waiting are the queued pods as JSON, and bytes is their total size.
	waiting chan []byte
	bytes   atomic.Int64
}

func newHandler(path string, clients *clients, take func(*v1.Pod), drop func(reason string)) *handler {
	return &handler{
		path: path, clients: clients, take: take, drop: drop,
		reading: make(chan struct{}, maxReading), waiting: make(chan []byte, maxWaiting),
	}
}

// serve serves requests until ctx ends.
func (h *handler) serve(ctx context.Context, listener net.Listener, secure *tls.Config) error {
	web := &http.Server{
		Handler: h, TLSConfig: secure, ErrorLog: log.New(errorLog{klog.FromContext(ctx)}, "", 0),
		ReadTimeout: readTimeout, WriteTimeout: readTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: 1 << 16,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
	}
	var workers sync.WaitGroup
	for range max(2, runtime.GOMAXPROCS(0)/2) {
		workers.Go(func() { h.deliver(ctx) })
	}
	workers.Go(func() {
		<-ctx.Done()
		_ = web.Close()
	})
	defer workers.Wait()
	return web.ServeTLS(&connlimit.Listener{Listener: listener, Limit: maxConnections}, "", "")
}

// ServeHTTP allows every AdmissionReview and returns an HTTP error for other requests.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h.clients.check(r.TLS); err != nil {
		h.drop(dropUnauthenticated)
		if h.mayLogClient(time.Now()) {
			klog.FromContext(r.Context()).Error(err, "Rejected an admission review; its pod arrives through the watch", "client", r.RemoteAddr)
		}
		http.Error(w, oneLine(err), http.StatusUnauthorized)
		return
	}
	switch {
	case r.URL.Path != h.path:
		http.Error(w, "not found: use the path in the ValidatingWebhookConfiguration", http.StatusNotFound)
		return
	case r.Method != http.MethodPost:
		http.Error(w, "send an AdmissionReview by POST", http.StatusMethodNotAllowed)
		return
	case !strings.HasPrefix(r.Header.Get("Content-Type"), "application/json"):
		http.Error(w, "send an AdmissionReview as application/json", http.StatusUnsupportedMediaType)
		return
	}
	body := http.MaxBytesReader(w, r.Body, maxBody)
	uid, err := h.receive(body)
	if err != nil {
		code := http.StatusBadRequest
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			code = http.StatusRequestEntityTooLarge
		}
		h.drop(dropMalformed)
		http.Error(w, oneLine(err), code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// Ignore the error: the client may have closed the connection.
	_ = json.NewEncoder(w).Encode(admission.AdmissionReview{
		TypeMeta: review, Response: &admission.AdmissionResponse{UID: uid, Allowed: true},
	})
}

// mayLogClient reports whether the last rejected client was logged at least clientLogInterval ago.
func (h *handler) mayLogClient(now time.Time) bool {
	last := h.clientLogged.Load()
	return now.UnixNano()-last >= int64(clientLogInterval) && h.clientLogged.CompareAndSwap(last, now.UnixNano())
}

var review = metav1.TypeMeta{APIVersion: admission.SchemeGroupVersion.String(), Kind: "AdmissionReview"}

// receive reads an AdmissionReview, queues its pod, and returns the UID for the response.
func (h *handler) receive(body io.Reader) (types.UID, error) {
	select {
	case h.reading <- struct{}{}:
		defer func() { <-h.reading }()
	default:
		h.drop(dropOverload)
		return uidOf(body)
	}
	content, err := io.ReadAll(body)
	if err != nil {
		return "", fmt.Errorf("reading the AdmissionReview: %w", err)
	}
	var received admission.AdmissionReview
	if err := json.Unmarshal(content, &received); err != nil {
		return "", fmt.Errorf("not an AdmissionReview: %w", err)
	}
	if received.TypeMeta != review || received.Request == nil || received.Request.UID == "" {
		return "", fmt.Errorf("not an AdmissionReview of %s with a request and its uid", review.APIVersion)
	}
	if reason := h.accept(received.Request); reason != "" {
		h.drop(reason)
	}
	return received.Request.UID, nil
}

// accept queues a pod, or returns the reason for which it is dropped.
func (h *handler) accept(request *admission.AdmissionRequest) (reason string) {
	pods := metav1.GroupVersionResource{Version: "v1", Resource: "pods"}
	size := int64(len(request.Object.Raw))
	switch {
	case request.DryRun != nil && *request.DryRun:
		return dropDryRun
	case request.Operation != admission.Create || request.Resource != pods || request.SubResource != "" || size == 0:
		return dropForeign
	case h.bytes.Add(size) > maxWaitingBytes:
		h.bytes.Add(-size)
		return dropOverload
	}
	select {
	case h.waiting <- request.Object.Raw:
		return ""
	default:
		h.bytes.Add(-size)
		return dropOverload
	}
}

// deliver decodes queued pods and calls take, until the context ends. The responses do not wait for it.
func (h *handler) deliver(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case raw := <-h.waiting:
			h.bytes.Add(-int64(len(raw)))
			pod := &v1.Pod{}
			if err := json.Unmarshal(raw, pod); err != nil {
				klog.FromContext(ctx).V(2).Info("Dropped a pod that cannot be decoded; the watch delivers it", "err", oneLine(err))
				h.drop(dropMalformed)
				continue
			}
			h.take(pod)
		}
	}
}

// uidOf returns the UID of an AdmissionReview. It does not read the rest of the body.
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

// seek advances the decoder to the value of a key in the current JSON object.
func seek(decoder *json.Decoder, key string) error {
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return fmt.Errorf("not an AdmissionReview: %w", err)
		}
		if token == key {
			return nil
		}
		var skipped json.RawMessage
		if err := decoder.Decode(&skipped); err != nil {
			return fmt.Errorf("not an AdmissionReview: %w", err)
		}
	}
	return fmt.Errorf("not an AdmissionReview: it has no %s", key)
}

// oneLine returns an error as one line of at most 200 bytes, because a client may control parts of it.
func oneLine(err error) string {
	const maxLength = 200
	line := strings.Join(strings.Fields(err.Error()), " ")
	return line[:min(len(line), maxLength)]
}

// errorLog logs connection errors at a high verbosity, because any client can cause them.
type errorLog struct{ logger klog.Logger }

// Write logs one line of the HTTP server.
func (e errorLog) Write(line []byte) (int, error) {
	e.logger.V(4).Info("Connection to the webhook failed", "err", strings.TrimSpace(string(line)))
	return len(line), nil
}
