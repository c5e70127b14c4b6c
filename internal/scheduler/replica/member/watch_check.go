package member

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A replica that is cut off from the API server keeps its last list of pods, and does not notice that its watch is
// silent. After a change of owners, its list may be the only one that has a bound pod: the reservation for the pod ends
// with the process of the former owner of the node. So a replica lists its pods for an assignment only after a request
// has succeeded that was sent after it had received this assignment, through the client of its watches. They share a
// connection, so what the watches had to deliver arrives with the answer. How long the watch was silent does not tell:
// it is silent whenever no pod changes.

const (
	// watchCheckTimeout is the timeout of such a request. After an error, it is sent again after watchCheckInterval.
	watchCheckTimeout  = 2 * time.Second
	watchCheckInterval = 200 * time.Millisecond
)

// checkWatches sends requests on the connection of the watches until one succeeds, or until this replica follows
// another assignment than that of the given stamp. Then it sends the lists of pods that wait for that.
func (m *Member) checkWatches(ctx context.Context, stamp int64) {
	for !m.checkWatch(ctx) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(watchCheckInterval):
		}
		m.mu.Lock()
		outdated := m.core.Outdated(stamp)
		m.mu.Unlock()
		if outdated {
			return
		}
	}
	m.mu.Lock()
	m.core.Checked(stamp)
	m.mu.Unlock()
	m.sendDueAndReport()
}

// checkWatch returns whether the API server answers a request on the connection of the watches. It reads the latest
// state, so that the API server first receives all changes that it sends to watches from its store.
func (m *Member) checkWatch(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, watchCheckTimeout)
	defer cancel()
	_, err := m.watching.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		m.logger.V(1).Info("Checking the connection of the watches failed; trying again", "err", err)
	}
	return err == nil
}
