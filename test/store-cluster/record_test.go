package storecluster

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/k8s-1m/k8s-1m/test/store-cluster/check"
)

// record is what the clients of one round sent and received. All keys of a round have its prefix, so that the requests of
// a round can be checked without those of others: a request without response may be executed in a later round.
type record struct {
	prefix  string
	started time.Time // of the run; the times of a record are relative to it
	stopped atomic.Bool

	mu           sync.Mutex
	operations   []check.Operation
	appends      []check.Attempt
	listReadings []check.Reading
	adds         []check.Attempt
	setReadings  []check.Reading
	leases       []check.Lease
	keyReads     []check.KeyRead
	// expiring are keys of leases that are neither renewed nor revoked.
	expiring []string
	// unanswered is the number of requests without response.
	unanswered int
}

// now returns the time since the start of the run in nanoseconds; it is more than 0.
func (r *record) now() int64 { return max(1, int64(time.Since(r.started))) }

// add changes the record under its lock.
func (r *record) add(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// operation appends an operation.
func (r *record) operation(o check.Operation) {
	r.add(func() {
		r.operations = append(r.operations, o)
		if o.Unknown {
			r.unanswered++
		}
	})
}

func (r *record) listKey() string { return r.prefix + "list" }

func (r *record) setPrefix() string { return r.prefix + "set/" }
