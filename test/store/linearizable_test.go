package store

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

const (
	linearClients = 8
	linearKeys    = 4
	// linearTimeout is the timeout of a request. The outcome of a request that times out is unknown.
	linearTimeout = 2 * time.Second
)

// TestLinearizable sends concurrent gets, puts, compare-and-swaps and deletes of a few keys while the
// server is killed and restarted. The responses must be linearizable. A watch must receive every change
// exactly once and in order, and its events must agree with the responses. SEED sets the seed of the
// random choices; the timing still differs between runs. LINEARIZABLE_SECONDS sets the duration.
func TestLinearizable(t *testing.T) {
	seconds := envInt(t, "LINEARIZABLE_SECONDS", 3)
	for _, mode := range []string{"fsync", "buffered"} {
		t.Run(mode, func(t *testing.T) {
			random := seededGenerator(t).Rand
			server := startMemEtcd(t, "--wal-mode", mode, "--snapshot-log-bytes", "200000")
			run := &linearRun{t: t, server: server, started: time.Now(), finish: make(chan struct{})}
			var group sync.WaitGroup
			for client := range linearClients {
				choices := rand.New(rand.NewPCG(random.Uint64(), 0))
				group.Go(func() { run.runClient(client, choices) })
			}
			group.Go(run.watchUntilFinished)
			for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); {
				time.Sleep(time.Duration(200+random.IntN(800)) * time.Millisecond)
				server.kill()
				server.restart()
			}
			close(run.finish)
			group.Wait()
			run.check()
		})
	}
}

// linearRun records the operations and events of a run.
type linearRun struct {
	t       *testing.T
	server  *server
	started time.Time
	// finish is closed at the end of the run.
	finish chan struct{}

	mu         sync.Mutex
	operations []porcupine.Operation
	// events are the events of the watch, which is created again after each crash.
	events []*mvccpb.Event
}

type linearKind int

const (
	linearGet linearKind = iota
	linearPut
	linearSwap
	linearDelete
)

// linearInput is a request on one key.
type linearInput struct {
	kind  linearKind
	key   string
	value string
	// expected is the mod revision with which a swap compares the key; 0 means that it does not exist.
	expected int64
}

// linearOutput is the response to a request on one key.
type linearOutput struct {
	// unknown is true if there was no response.
	unknown bool
	// done is whether the request changed the key.
	done bool
	// value and revision are those of the pair that was read, or "" and 0 if the key does not exist.
	// For a put or a swap that is done, revision is the revision of the write.
	value    string
	revision int64
	// header is the revision in the response header.
	header int64
}

// now returns the time since the start of the run in nanoseconds.
func (r *linearRun) now() int64 { return int64(time.Since(r.started)) }

func (r *linearRun) isFinished() bool {
	select {
	case <-r.finish:
		return true
	default:
		return false
	}
}

// dial returns a client that reconnects quickly after a crash.
func (r *linearRun) dial() *api {
	conn, err := grpc.NewClient(r.server.address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// While the server is down, no request is sent. Only requests that were in progress at the
		// time of the crash therefore have an unknown outcome.
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1, MaxDelay: 20 * time.Millisecond},
		}))
	if err != nil {
		r.t.Error(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	return newAPI(conn)
}

// runClient sends random requests, one after the other, until the run is finished.
func (r *linearRun) runClient(id int, random *rand.Rand) {
	a := r.dial()
	lastRevisions := map[string]int64{}
	for n := 0; !r.isFinished(); n++ {
		input := linearInput{
			kind:  linearKind(random.IntN(4)),
			key:   fmt.Sprint("key-", random.IntN(linearKeys)),
			value: fmt.Sprintf("%d of client %d", n, id),
		}
		input.expected = lastRevisions[input.key]
		call := r.now()
		output, err := execute(a, input)
		operation := porcupine.Operation{ClientId: id, Input: input, Call: call, Output: output, Return: r.now()}
		if err != nil {
			// The server may execute the request at any later time, or never.
			operation.Output, operation.Return = linearOutput{unknown: true}, math.MaxInt64
			time.Sleep(time.Millisecond)
			if input.kind == linearGet {
				continue
			}
		} else {
			lastRevisions[input.key] = output.revision
		}
		r.mu.Lock()
		r.operations = append(r.operations, operation)
		r.mu.Unlock()
	}
}

// execute sends the request and returns the response.
func execute(a *api, input linearInput) (linearOutput, error) {
	ctx, cancel := context.WithTimeout(context.Background(), linearTimeout)
	defer cancel()
	key := []byte(input.key)
	switch input.kind {
	case linearGet:
		response, err := a.kv.Range(ctx, &pb.RangeRequest{Key: key})
		if err != nil {
			return linearOutput{}, err
		}
		return readOutput(response, response.Header.Revision), nil
	case linearPut:
		response, err := a.kv.Put(ctx, putRequest(input.key, input.value))
		if err != nil {
			return linearOutput{}, err
		}
		return linearOutput{done: true, revision: response.Header.Revision, header: response.Header.Revision}, nil
	case linearSwap:
		response, err := a.kv.Txn(ctx, &pb.TxnRequest{
			Compare: []*pb.Compare{{Key: key, Target: pb.Compare_MOD, TargetUnion: &pb.Compare_ModRevision{ModRevision: input.expected}}},
			Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: putRequest(input.key, input.value)}}},
			Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: key}}}},
		})
		if err != nil {
			return linearOutput{}, err
		}
		if response.Succeeded {
			return linearOutput{done: true, revision: response.Header.Revision, header: response.Header.Revision}, nil
		}
		return readOutput(response.Responses[0].GetResponseRange(), response.Header.Revision), nil
	default:
		response, err := a.kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: key})
		if err != nil {
			return linearOutput{}, err
		}
		return linearOutput{done: response.Deleted == 1, header: response.Header.Revision}, nil
	}
}

// readOutput returns the output of a read. header is the revision in the response header.
func readOutput(response *pb.RangeResponse, header int64) linearOutput {
	output := linearOutput{header: header}
	if len(response.Kvs) == 1 {
		output.value, output.revision = string(response.Kvs[0].Value), response.Kvs[0].ModRevision
	}
	return output
}

// watchUntilFinished watches all keys until the run is finished, and resumes after each crash.
func (r *linearRun) watchUntilFinished() {
	a := r.dial()
	for !r.isFinished() {
		r.watchOnce(a)
		time.Sleep(time.Millisecond)
	}
}

// watchOnce watches all keys from the first event that was not received, until the stream fails.
func (r *linearRun) watchOnce(a *api) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-r.finish:
			cancel()
		case <-ctx.Done():
		}
	}()
	stream, err := a.watch.Watch(ctx)
	if err != nil {
		return
	}
	from := int64(1)
	if n := len(r.events); n > 0 {
		from = r.events[n-1].Kv.ModRevision + 1
	}
	create := &pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: from}
	if stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}) != nil {
		return
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return
		}
		r.events = append(r.events, response.Events...)
	}
}

// check verifies that the responses are linearizable, that the watch received the complete history, and
// that each response agrees with the history.
func (r *linearRun) check() {
	t := r.t
	unknown := 0
	for _, operation := range r.operations {
		if operation.Output.(linearOutput).unknown {
			unknown++
		}
	}
	t.Logf("%d operations, %d of them with unknown outcome", len(r.operations), unknown)
	// The result is unknown if this takes longer. A machine without other work needs less than a second.
	result := porcupine.CheckOperationsTimeout(linearModel.ToModel(), r.operations, 10*time.Minute)
	if result != porcupine.Ok {
		t.Fatalf("the history is not linearizable: %s", result)
	}
	a := r.server.dial()
	state, err := a.maintenance.Status(t.Context(), &pb.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	final := history(t, a, 1, state.Header.Revision).(*pb.WatchResponse).Events
	for i, event := range final {
		if event.Kv.ModRevision != int64(i)+2 {
			t.Fatalf("event %d of the history has revision %d; want %d", i, event.Kv.ModRevision, i+2)
		}
		event.PrevKv = nil
		if i < len(r.events) && !proto.Equal(event, r.events[i]) {
			t.Fatalf("event %d of the watch is %v, but that of the history is %v", i, r.events[i], event)
		}
	}
	if len(r.events) > len(final) {
		t.Fatalf("the watch received %d events, but the history has %d", len(r.events), len(final))
	}
	r.checkResponses(final)
}

// checkResponses verifies that each response agrees with the history. Event i has revision i+2.
func (r *linearRun) checkResponses(events []*mvccpb.Event) {
	t := r.t
	for _, operation := range r.operations {
		input, output := operation.Input.(linearInput), operation.Output.(linearOutput)
		if output.unknown {
			continue
		}
		if output.header > int64(len(events))+1 {
			t.Fatalf("%+v returned %+v, but the history ends at revision %d", input, output, len(events)+1)
		}
		wrote := input.kind != linearGet && output.done
		if !wrote {
			if input.kind == linearDelete {
				continue
			}
			if want := modRevisionAt(events, input.key, output.header); want != output.revision {
				t.Fatalf("%+v read mod revision %d at revision %d; want %d", input, output.revision, output.header, want)
			}
			continue
		}
		event := events[output.header-2]
		deleted := event.Type == mvccpb.Event_DELETE
		if string(event.Kv.Key) != input.key || deleted != (input.kind == linearDelete) {
			t.Fatalf("%+v returned %+v, but the event at its revision is %v", input, output, event)
		}
		if !deleted && string(event.Kv.Value) != input.value {
			t.Fatalf("%+v returned %+v, but the event at its revision is %v", input, output, event)
		}
	}
}

// modRevisionAt returns the mod revision that a key has at a revision, or 0 if it does not exist.
func modRevisionAt(events []*mvccpb.Event, key string, revision int64) int64 {
	for i := revision - 2; i >= 0; i-- {
		if string(events[i].Kv.Key) != key {
			continue
		}
		if events[i].Type == mvccpb.Event_DELETE {
			return 0
		}
		return events[i].Kv.ModRevision
	}
	return 0
}

// linearState is the state of one key. value is "" if the key does not exist. After a write whose
// response was lost, revision is revisionUnknown until the next read.
type linearState struct {
	value    string
	revision int64
}

const revisionUnknown = -1

var linearModel = porcupine.NondeterministicModel{
	Partition: func(operations []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, operation := range operations {
			key := operation.Input.(linearInput).key
			byKey[key] = append(byKey[key], operation)
		}
		var partitions [][]porcupine.Operation
		for _, partition := range byKey {
			partitions = append(partitions, partition)
		}
		return partitions
	},
	Init: func() []any { return []any{linearState{}} },
	Step: func(state, input, output any) []any {
		after := linearStep(state.(linearState), input.(linearInput), output.(linearOutput))
		states := make([]any, len(after))
		for i := range after {
			states[i] = after[i]
		}
		return states
	},
	Equal: func(a, b any) bool { return a == b },
}

// linearStep returns the possible states after an operation; none if the output is impossible.
func linearStep(s linearState, input linearInput, output linearOutput) []linearState {
	if output.unknown {
		return unknownStep(s, input)
	}
	matches := func(value string, revision int64) bool {
		return s.value == value && (s.revision == revision || s.revision == revisionUnknown)
	}
	written := []linearState{{input.value, output.revision}}
	switch {
	case input.kind == linearPut:
		return written
	case input.kind == linearDelete && output.done == (s.value != ""):
		return []linearState{{}}
	case input.kind == linearDelete:
		return nil
	case input.kind == linearSwap && output.done:
		if matches(s.value, input.expected) {
			return written
		}
		return nil
	case matches(output.value, output.revision):
		return []linearState{{output.value, output.revision}}
	}
	return nil
}

// unknownStep returns the possible states after an operation whose outcome is unknown: the state without
// the operation, and the state with it if it can have been executed.
func unknownStep(s linearState, input linearInput) []linearState {
	written := linearState{input.value, revisionUnknown}
	switch input.kind {
	case linearPut:
		return []linearState{s, written}
	case linearDelete:
		return []linearState{s, {}}
	case linearSwap:
		if s.revision == input.expected || s.revision == revisionUnknown {
			return []linearState{s, written}
		}
	}
	return []linearState{s}
}

// TestLinearModel checks that the model accepts linearizable histories and rejects others.
func TestLinearModel(t *testing.T) {
	put := func(value string, revision, call int64, unknown bool) porcupine.Operation {
		operation := porcupine.Operation{
			Input: linearInput{kind: linearPut, value: value}, Call: call, Return: call + 5,
			Output: linearOutput{done: true, revision: revision, unknown: unknown},
		}
		if unknown {
			operation.Return = math.MaxInt64
		}
		return operation
	}
	get := func(value string, revision, call int64) porcupine.Operation {
		return porcupine.Operation{Input: linearInput{}, Call: call, Return: call + 5, Output: linearOutput{value: value, revision: revision}}
	}
	for name, c := range map[string]struct {
		history      []porcupine.Operation
		linearizable bool
	}{
		"read of the last write":          {[]porcupine.Operation{put("a", 2, 0, false), put("b", 3, 10, false), get("b", 3, 20)}, true},
		"stale read":                      {[]porcupine.Operation{put("a", 2, 0, false), put("b", 3, 10, false), get("a", 2, 20)}, false},
		"wrong revision":                  {[]porcupine.Operation{put("a", 2, 0, false), get("a", 3, 10)}, false},
		"lost response, late execution":   {[]porcupine.Operation{put("a", 0, 0, true), get("", 0, 10), get("a", 2, 20)}, true},
		"lost response, write disappears": {[]porcupine.Operation{put("a", 0, 0, true), get("a", 2, 10), get("", 0, 20)}, false},
	} {
		if got := porcupine.CheckOperations(linearModel.ToModel(), c.history); got != c.linearizable {
			t.Errorf("%s: linearizable = %v; want %v", name, got, c.linearizable)
		}
	}
}
