package storedata

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

// progressKeys is the number of keys between two displays of the progress.
const progressKeys = 10_000

// CompareOptions are the options of [Compare].
type CompareOptions struct {
	First, Second *clientv3.Client
	// Prefix is that of the keys to compare. If it is empty, all keys are compared, and the leases.
	Prefix string
	// Shown is the largest number of differences that are described. All are counted.
	Shown   int
	Display progress.Display
}

// Comparison is the result of [Compare].
type Comparison struct {
	First  Content `json:"first"`
	Second Content `json:"second"`
	// Differing is the number of keys and leases that differ or that only one store has.
	Differing   int64        `json:"differing"`
	Differences []Difference `json:"differences"` // the first ones
}

// Content is what a store had when it was compared.
type Content struct {
	Revision int64 `json:"revision"`
	Keys     int64 `json:"keys"`
	Bytes    int64 `json:"bytes"` // of keys and values
	Leases   int64 `json:"leases"`
}

// Difference is a difference between two stores.
type Difference struct {
	Key   string `json:"key,omitempty"`
	Lease string `json:"lease,omitempty"` // ID in hexadecimal form
	What  string `json:"what"`
}

// Compare compares keys, values, create and mod revisions, versions and leases of two stores, each at its current
// revision. The current revisions themselves may differ: a restore can raise that of the copy. It holds a few pages
// of each store in memory, and all leases.
func Compare(ctx context.Context, o CompareOptions) (c Comparison, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.Differences = []Difference{}
	if err := c.compareKeys(ctx, o); err != nil || o.Prefix != "" {
		return c, err
	}
	return c, c.compareLeases(ctx, o)
}

func (c *Comparison) compareKeys(ctx context.Context, o CompareOptions) error {
	first, err := newReader(ctx, o.First, o.Prefix)
	if err != nil {
		return fmt.Errorf("the first store: %w", err)
	}
	second, err := newReader(ctx, o.Second, o.Prefix)
	if err != nil {
		return fmt.Errorf("the second store: %w", err)
	}
	c.First.Revision, c.Second.Revision = first.revision, second.revision
	started := time.Now()
	task := o.Display.Task("keys compared", int(max(first.count, second.count)))
	for compared := 1; ; compared++ {
		more, err := c.compareNext(ctx, o, first, second)
		if err != nil {
			progress.Fail(ctx, task, err.Error())
			return err
		}
		if !more {
			task.Done(withRate(compared-1, started))
			return nil
		}
		if compared%progressKeys == 0 {
			task.Set(compared)
		}
	}
}

// withRate describes a number of keys, and how many of them were read in a second.
func withRate(keys int, started time.Time) string {
	return fmt.Sprintf("%d, %.0f/s", keys, float64(keys)/max(time.Since(started).Seconds(), 1e-3))
}

// compareNext compares the lowest key that has not been compared. It returns false if there is none.
func (c *Comparison) compareNext(ctx context.Context, o CompareOptions, first, second *reader) (more bool, err error) {
	a, err := first.peek(ctx)
	if err != nil {
		return false, fmt.Errorf("the first store: %w", err)
	}
	b, err := second.peek(ctx)
	if err != nil {
		return false, fmt.Errorf("the second store: %w", err)
	}
	if a == nil && b == nil {
		return false, nil
	}
	order := 0
	switch {
	case a == nil:
		order = 1
	case b == nil:
		order = -1
	default:
		order = bytes.Compare(a.Key, b.Key)
	}
	if order <= 0 {
		first.take()
		c.First.add(a)
	}
	if order >= 0 {
		second.take()
		c.Second.add(b)
	}
	switch {
	case order < 0:
		c.differ(o, Difference{Key: string(a.Key), What: "only in the first store"})
	case order > 0:
		c.differ(o, Difference{Key: string(b.Key), What: "only in the second store"})
	default:
		if what := differences(a, b); what != "" {
			c.differ(o, Difference{Key: string(a.Key), What: what})
		}
	}
	return true, nil
}

func (c *Content) add(pair *mvccpb.KeyValue) {
	c.Keys++
	c.Bytes += int64(len(pair.Key) + len(pair.Value))
}

func (c *Comparison) differ(o CompareOptions, d Difference) {
	if c.Differing++; len(c.Differences) < o.Shown {
		c.Differences = append(c.Differences, d)
	}
}

// differences describes the fields in which two pairs with the same key differ; empty if there are none.
func differences(a, b *mvccpb.KeyValue) string {
	var found []string
	if !bytes.Equal(a.Value, b.Value) {
		found = append(found, fmt.Sprintf("value (%d and %d bytes)", len(a.Value), len(b.Value)))
	}
	for _, field := range []struct {
		name          string
		first, second int64
	}{
		{"create revision", a.CreateRevision, b.CreateRevision}, {"mod revision", a.ModRevision, b.ModRevision}, {"version", a.Version, b.Version},
	} {
		if field.first != field.second {
			found = append(found, fmt.Sprintf("%s %d and %d", field.name, field.first, field.second))
		}
	}
	if a.Lease != b.Lease {
		found = append(found, fmt.Sprintf("lease %x and %x", a.Lease, b.Lease))
	}
	return strings.Join(found, ", ")
}

// compareLeases compares the IDs and the granted TTLs of leases. Their remaining TTLs change all the time.
func (c *Comparison) compareLeases(ctx context.Context, o CompareOptions) error {
	task := o.Display.Task("leases compared", 0)
	first, second, err := bothLeases(ctx, o)
	if err != nil {
		progress.Fail(ctx, task, err.Error())
		return err
	}
	c.First.Leases, c.Second.Leases = int64(len(first)), int64(len(second))
	differ := func(lease grantedLease, what string) {
		c.differ(o, Difference{Lease: fmt.Sprintf("%x", int64(lease.id)), What: what})
	}
	for len(first) > 0 || len(second) > 0 {
		switch {
		case len(second) == 0 || len(first) > 0 && first[0].id < second[0].id:
			differ(first[0], "only in the first store")
			first = first[1:]
		case len(first) == 0 || second[0].id < first[0].id:
			differ(second[0], "only in the second store")
			second = second[1:]
		default:
			if a, b := first[0], second[0]; a.granted != b.granted {
				differ(a, fmt.Sprintf("TTL %d s and %d s", a.granted, b.granted))
			}
			first, second = first[1:], second[1:]
		}
	}
	task.Done(fmt.Sprint(max(c.First.Leases, c.Second.Leases)))
	return nil
}

func bothLeases(ctx context.Context, o CompareOptions) (first, second []grantedLease, err error) {
	if first, err = readLeases(ctx, o.First); err != nil {
		return nil, nil, fmt.Errorf("the first store: %w", err)
	}
	if second, err = readLeases(ctx, o.Second); err != nil {
		return nil, nil, fmt.Errorf("the second store: %w", err)
	}
	return first, second, nil
}

// Print writes the comparison for users.
func (c Comparison) Print(w io.Writer) {
	for _, d := range c.Differences {
		name := fmt.Sprintf("%q", d.Key)
		if d.Lease != "" {
			name = "lease " + d.Lease
		}
		fmt.Fprintf(w, "%s: %s\n", name, d.What)
	}
	if more := c.Differing - int64(len(c.Differences)); more > 0 {
		fmt.Fprintf(w, "... and %d more\n", more)
	}
	printContent := func(name string, s Content) {
		fmt.Fprintf(w, "%-8s %d keys, %.1f MiB, %d leases, revision %d\n", name, s.Keys, float64(s.Bytes)/mebibyte, s.Leases, s.Revision)
	}
	printContent("First:", c.First)
	printContent("Second:", c.Second)
}
