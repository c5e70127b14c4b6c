package storecluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/k8s-1m/k8s-1m/test/store-cluster/check"
)

const (
	// requestTimeout is the timeout of a request. The outcome of a request that times out is unknown.
	requestTimeout = 2 * time.Second
	// pace is the mean time between two requests of a client. Faster clients would make histories that take long to check,
	// and leave no CPU to the members.
	pace = 8 * time.Millisecond
	// registers is the number of keys of a round that clients put, swap, get and delete.
	registers = 3
)

// client is one client. It sends its requests one after the other.
type client struct {
	id     int
	store  *clientv3.Client
	random *rand.Rand
	serial int // number of values that it has made
}

// dial returns a client that reconnects quickly after a crash.
func dial(t *testing.T, endpoints ...string) *clientv3.Client {
	t.Helper()
	store, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, Logger: zap.NewNop(), MaxCallRecvMsgSize: 1 << 30,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.5, MaxDelay: 100 * time.Millisecond},
			MinConnectTimeout: time.Second,
		})},
	})
	must(t, err)
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// work is a load: one request, or a few that belong together.
type work func(context.Context, *client, *record)

// run does the work until the round is stopped.
func (c *client) run(r *record, do work) {
	for !r.stopped.Load() {
		do(context.Background(), c, r)
		time.Sleep(time.Duration(c.random.Int64N(int64(2 * pace))))
	}
}

// value returns a value that no other request of the run has.
func (c *client) value() string {
	c.serial++
	return fmt.Sprintf("%d.%d", c.id, c.serial)
}

// notSent reports whether an error means that a request did not leave the client, because it had no connection.
func notSent(err error) bool {
	s, ok := status.FromError(err)
	return ok && s.Code() == codes.Unavailable && strings.Contains(s.Message(), "Error while dialing")
}

// do sends a request for one key and records it. It returns the response, and false if there was none.
func (c *client) do(ctx context.Context, r *record, o check.Operation) (check.Operation, bool) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	o.Client, o.Call = c.id, r.now()
	answered, err := c.execute(ctx, o)
	answered.Return = r.now()
	switch {
	case notSent(err):
		return o, false
	case err != nil:
		o.Return, o.Unknown = answered.Return, true
		r.operation(o)
		return o, false
	}
	r.operation(answered)
	return answered, true
}

// execute sends a request and returns it with its response.
func (c *client) execute(ctx context.Context, o check.Operation) (check.Operation, error) {
	switch o.Kind {
	case check.Get:
		var options []clientv3.OpOption
		if o.Serializable {
			options = append(options, clientv3.WithSerializable())
		}
		answer, err := c.store.Get(ctx, o.Key, options...)
		if err != nil {
			return o, err
		}
		return read(o, answer, answer.Header.Revision), nil
	case check.Put:
		answer, err := c.store.Put(ctx, o.Key, o.Value)
		if err != nil {
			return o, err
		}
		return written(o, answer.Header.Revision), nil
	case check.Delete:
		answer, err := c.store.Delete(ctx, o.Key)
		if err != nil {
			return o, err
		}
		o.Done, o.Header = answer.Deleted == 1, answer.Header.Revision
		return o, nil
	}
	answer, err := c.store.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(o.Key), "=", o.Expected)).
		Then(clientv3.OpPut(o.Key, o.Value)).Else(clientv3.OpGet(o.Key)).Commit()
	if err != nil {
		return o, err
	}
	if answer.Succeeded {
		return written(o, answer.Header.Revision), nil
	}
	return read(o, (*clientv3.GetResponse)(answer.Responses[0].GetResponseRange()), answer.Header.Revision), nil
}

func read(o check.Operation, answer *clientv3.GetResponse, header int64) check.Operation {
	o.Header = header
	if len(answer.Kvs) == 1 {
		o.Found, o.Revision = string(answer.Kvs[0].Value), answer.Kvs[0].ModRevision
	}
	return o
}

func written(o check.Operation, revision int64) check.Operation {
	o.Done, o.Revision, o.Header = true, revision, revision
	return o
}

// useRegister sends a random request for one of a few keys.
func useRegister(ctx context.Context, c *client, r *record) {
	o := check.Operation{Kind: check.Kind(c.random.IntN(4)), Key: fmt.Sprintf("%sregister-%d", r.prefix, c.random.IntN(registers))}
	switch o.Kind {
	case check.Get:
		o.Serializable = c.random.IntN(3) == 0
	case check.Put:
		o.Value = c.value()
	case check.Swap:
		// The revision is read first, otherwise most swaps would be refused.
		seen, answered := c.do(ctx, r, check.Operation{Kind: check.Get, Key: o.Key})
		if !answered {
			return
		}
		o.Expected, o.Value = seen.Revision, c.value()
	case check.Delete:
	}
	c.do(ctx, r, o)
}

// appendElement reads the list and appends an element in a transaction that fails if the list has changed.
func appendElement(ctx context.Context, c *client, r *record) {
	seen, answered := c.do(ctx, r, check.Operation{Kind: check.Get, Key: r.listKey()})
	if !answered {
		return
	}
	r.add(func() {
		r.listReadings = append(r.listReadings, check.Reading{Call: seen.Call, Return: seen.Return, Elements: elements(seen.Found)})
	})
	element := c.value()
	list := strings.Join(append(elements(seen.Found), element), ",")
	call := r.now()
	o, answered := c.do(ctx, r, check.Operation{Kind: check.Swap, Key: r.listKey(), Value: list, Expected: seen.Revision})
	attempt := check.Attempt{Element: element, Call: call, Return: r.now(), Unknown: !answered, Refused: answered && !o.Done}
	r.add(func() { r.appends = append(r.appends, attempt) })
}

// elements returns the elements of a list in its encoding.
func elements(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// useSet adds an element to a set, which is the keys with a prefix, and sometimes reads the set.
func useSet(ctx context.Context, c *client, r *record) {
	if c.random.IntN(5) == 0 {
		readSet(ctx, c, r)
		return
	}
	element := c.value()
	call := r.now()
	_, answered := c.do(ctx, r, check.Operation{Kind: check.Put, Key: r.setPrefix() + element, Value: "x"})
	attempt := check.Attempt{Element: element, Call: call, Return: r.now(), Unknown: !answered}
	r.add(func() { r.adds = append(r.adds, attempt) })
}

func readSet(ctx context.Context, c *client, r *record) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	call := r.now()
	found, err := setAt(ctx, c.store, r, 0)
	if err != nil {
		return
	}
	reading := check.Reading{Call: call, Return: r.now(), Elements: found}
	r.add(func() { r.setReadings = append(r.setReadings, reading) })
}

// setAt returns the elements of the set at a revision; 0 is the newest.
func setAt(ctx context.Context, store *clientv3.Client, r *record, revision int64) (found []string, err error) {
	answer, err := store.Get(ctx, r.setPrefix(), clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithRev(revision))
	if err != nil {
		return nil, err
	}
	for _, kv := range answer.Kvs {
		found = append(found, strings.TrimPrefix(string(kv.Key), r.setPrefix()))
	}
	return found, nil
}
