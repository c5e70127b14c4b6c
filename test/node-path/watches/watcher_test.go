package watches

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

// retryDelay is the time after which a watch that failed is started again.
const retryDelay = 50 * time.Millisecond

// longTimeout is the number of seconds after which a watch ends if nothing else is said.
const longTimeout = 300

// streamTimeout bounds the time for which a test reads one watch.
const streamTimeout = 10 * time.Minute

// initialEvents asks for the objects first.
const initialEvents = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"

// event is an event of a watch, or its start.
type event struct {
	kind    watch.EventType
	version int64
	object  runtime.Object
	raw     []byte
	// starts is true if a watch starts here, and hasState if it sends the state first.
	starts, hasState bool
}

func (e *event) short() string {
	if e == nil {
		return "nothing"
	}
	return fmt.Sprintf("%s %d", e.kind, e.version)
}

// read reads an event in protobuf.
func read(reader io.Reader) (event, error) {
	var length [4]byte
	if _, err := io.ReadFull(reader, length[:]); err != nil {
		return event{}, err
	}
	raw := make([]byte, binary.BigEndian.Uint32(length[:]))
	if _, err := io.ReadFull(reader, raw); err != nil {
		return event{}, err
	}
	var message metav1.WatchEvent
	if err := message.Unmarshal(raw); err != nil {
		return event{}, err
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(message.Object.Raw, nil, nil)
	if err != nil {
		return event{}, err
	}
	result := event{kind: watch.EventType(message.Type), object: object, raw: raw}
	if accessor, err := meta.Accessor(object); err == nil {
		result.version, _ = strconv.ParseInt(accessor.GetResourceVersion(), 10, 64)
	}
	return result, nil
}

// watcher watches as an informer: after the end of a watch it goes on at the last version, and if that is too old, it
// begins with the state. Each of its watches is at the next one of the addresses.
type watcher struct {
	name, path string
	addresses  []string
	client     *http.Client
	// resource and node are what is watched, and timeout the seconds after which a watch ends.
	resource, node string
	timeout        int
	// expired counts the errors 410, and starts the watches.
	expired, starts atomic.Int64
	mutex           sync.Mutex
	seen            []event
	// last is the version at which the watch goes on. Initial events do not count: they are not in the order of versions.
	last int64
}

// follow watches from a version until the context ends.
func (w *watcher) follow(ctx context.Context, from int64) {
	w.last = from
	for state, next := false, 0; ctx.Err() == nil; next++ {
		err := w.once(ctx, w.addresses[next%len(w.addresses)], state)
		var gone *expired
		if state = errors.As(err, &gone); state {
			w.expired.Add(1)
		} else if err != nil {
			time.Sleep(retryDelay)
		}
	}
}

type expired struct{}

func (*expired) Error() string { return "410 Gone" }

func (w *watcher) once(ctx context.Context, address string, state bool) error {
	query := fmt.Sprintf("&watch=true&allowWatchBookmarks=true&timeoutSeconds=%d&resourceVersion=%d", cmp.Or(w.timeout, longTimeout), w.last)
	if state {
		query += initialEvents
	}
	response, err := get(ctx, w.client, address, w.path+query)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusGone {
		return &expired{}
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", response.StatusCode)
	}
	w.starts.Add(1)
	w.add(event{starts: true, hasState: state}, false)
	for {
		next, err := read(response.Body)
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if status, ok := next.object.(*metav1.Status); ok && next.kind == watch.Error {
			if status.Code == http.StatusGone {
				return &expired{}
			}
			return errors.New(status.Message)
		}
		state = state && next.kind != watch.Bookmark
		w.add(next, !state)
	}
}

func (w *watcher) add(next event, counts bool) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.seen = append(w.seen, next)
	if counts {
		w.last = max(w.last, next.version)
	}
}

// has returns whether the watch has seen a version.
func (w *watcher) has(version int64) bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.last >= version
}

// stream opens a watch and returns it.
func stream(t *testing.T, client *http.Client, address, path string) io.ReadCloser {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), streamTimeout)
	t.Cleanup(cancel)
	response, err := get(ctx, client, address, path)
	must(t, err)
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(response.Body)
		t.Fatalf("%s: status %d: %q", path, response.StatusCode, body)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return response.Body
}

// body returns the status and the body of the answer to a GET.
func body(t *testing.T, client *http.Client, address, path string) (int, []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	response, err := get(ctx, client, address, path)
	must(t, err)
	defer response.Body.Close()
	var content bytes.Buffer
	_, err = content.ReadFrom(response.Body)
	must(t, err)
	return response.StatusCode, content.Bytes()
}

// status returns the status of the answer to a GET.
func status(t *testing.T, client *http.Client, address, path string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	response, err := get(ctx, client, address, path)
	must(t, err)
	_ = response.Body.Close()
	return response.StatusCode
}
