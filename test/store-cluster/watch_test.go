package storecluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/k8s-1m/k8s-1m/test/store-cluster/check"
)

// watcher watches all keys at one member, through all its crashes.
type watcher struct {
	store *clientv3.Client

	mu     sync.Mutex
	stream check.Stream
	last   int64 // newest revision of an event
	failed error
}

// allKeys are the options of a request for all keys, of which the first is "\x00".
func allKeys(options ...clientv3.OpOption) []clientv3.OpOption {
	return append(options, clientv3.WithFromKey())
}

const firstKey = "\x00"

// run watches until ctx is done. The client library resumes the watch after each interruption; if it gives up, the watch
// is created again, from the first revision that was not received.
func (w *watcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		w.mu.Lock()
		from := max(w.stream.From, w.last+1)
		w.mu.Unlock()
		watchCtx, cancel := context.WithCancel(ctx)
		for response := range w.store.Watch(watchCtx, firstKey, allKeys(clientv3.WithRev(from), clientv3.WithProgressNotify())...) {
			w.receive(response)
		}
		cancel()
		time.Sleep(time.Millisecond)
	}
}

func (w *watcher) receive(response clientv3.WatchResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if response.CompactRevision > 0 {
		w.failed = fmt.Errorf("watcher of %s: revision %d is compacted, but no revision above %d was received", w.stream.Name, response.CompactRevision, w.last)
		return
	}
	if response.IsProgressNotify() {
		w.stream.Progress = append(w.stream.Progress, check.Progress{Revision: response.Header.Revision, After: len(w.stream.Events)})
	}
	for _, event := range response.Events {
		w.stream.Events = append(w.stream.Events, eventOf(event))
		w.last = event.Kv.ModRevision
	}
}

func eventOf(event *clientv3.Event) check.Event {
	return check.Event{
		Key: string(event.Kv.Key), Value: string(event.Kv.Value), Deleted: event.Type == mvccpb.Event_DELETE, Revision: event.Kv.ModRevision,
	}
}

// reached waits until the watcher has received an event of the revision until, or of a later one.
func (w *watcher) reached(ctx context.Context, until int64) error {
	for {
		w.mu.Lock()
		last, failed := w.last, w.failed
		w.mu.Unlock()
		if failed != nil || last >= until {
			return failed
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("watcher of %s: received revision %d, and not %d, within %v: events are missing", w.stream.Name, last, until, patience)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// verify checks what the watcher has received up to a revision, and forgets it.
func (w *watcher) verify(history check.History, until int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := check.Watch(w.stream, history, until); err != nil {
		return err
	}
	checked := 0
	for checked < len(w.stream.Events) && w.stream.Events[checked].Revision <= until {
		checked++
	}
	var later []check.Progress
	for _, p := range w.stream.Progress {
		if p.After >= checked && p.Revision > until {
			later = append(later, check.Progress{Revision: p.Revision, After: p.After - checked})
		}
	}
	w.stream = check.Stream{Name: w.stream.Name, From: until + 1, Events: w.stream.Events[checked:], Progress: later}
	return nil
}

// historyOf reads the history from a revision up to another one, which must have an event.
func historyOf(ctx context.Context, store *clientv3.Client, first, last int64) (history check.History, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for response := range store.Watch(ctx, firstKey, allKeys(clientv3.WithRev(first))...) {
		if err := response.Err(); err != nil {
			return nil, fmt.Errorf("reading the history: %w", err)
		}
		for _, event := range response.Events {
			if event.Kv.ModRevision > last {
				return history, nil
			}
			history = append(history, eventOf(event))
		}
		if len(history) > 0 && history[len(history)-1].Revision == last {
			return history, nil
		}
	}
	return nil, fmt.Errorf("reading the history: the watch ended before revision %d: %w", last, ctx.Err())
}
