package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// growingCluster is a cluster of mem_etcd whose members are added and removed by commands.
type growingCluster struct {
	t       *testing.T
	log     string
	members map[string]*growingMember
}

// growingMember is a process of a growing cluster, and a client of it.
type growingMember struct {
	name, peerURL, dataDir string
	args                   []string // further flags
	server                 *server
	client                 *clientv3.Client
}

// startGrowing starts a cluster of one member with the name a.
func startGrowing(t *testing.T, log string) *growingCluster {
	t.Helper()
	c := newGrowing(t, log)
	c.startFirst(c.prepare("a"))
	return c
}

// newGrowing returns a cluster without members.
func newGrowing(t *testing.T, log string) *growingCluster {
	c := &growingCluster{t: t, log: log, members: map[string]*growingMember{}}
	t.Cleanup(func() {
		if t.Failed() {
			for name, member := range c.members {
				if member.server != nil {
					t.Logf("log of member %s:\n%s", name, member.server.log)
				}
			}
		}
	})
	return c
}

// startFirst starts a member that is the only one.
func (c *growingCluster) startFirst(m *growingMember) {
	c.t.Helper()
	c.start(m, "new", []string{m.name + "=" + m.peerURL})
	m.server.waitReady()
}

// prepare chooses the addresses of a member, and its data directory.
func (c *growingCluster) prepare(name string) *growingMember {
	m := &growingMember{name: name, peerURL: fmt.Sprintf("http://127.0.0.1:%d", freePort(c.t)), dataDir: filepath.Join(c.t.TempDir(), name)}
	c.members[name] = m
	return m
}

// start starts the process of a member with the variables that etcdctl prints after `member add`.
func (c *growingCluster) start(m *growingMember, state string, initial []string) {
	c.t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", freePort(c.t))
	args := []string{
		"--name", m.name, "--initial-cluster", strings.Join(initial, ","), "--initial-cluster-state", state,
		"--listen-peer-urls", m.peerURL, "--initial-advertise-peer-urls", m.peerURL,
		"--listen-client-urls", "http://" + address, "--advertise-client-urls", "http://" + address,
		"--replication-log", c.log,
	}
	if c.log != "memory" {
		args = append(args, "--data-dir", m.dataDir)
	}
	m.server = &server{t: c.t, address: address, args: append(args, m.args...)}
	m.server.startWithoutWaiting(binary(c.t, "mem_etcd"))
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, Logger: zap.NewNop()})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { client.Close() })
	m.client = client
}

// join starts the process of a member that was added.
func (c *growingCluster) join(m *growingMember, added *pb.Member, members []*pb.Member) {
	c.t.Helper()
	var initial []string
	for _, listed := range members {
		name := listed.Name
		if listed.ID == added.ID {
			name = m.name
		}
		for _, url := range listed.PeerURLs {
			initial = append(initial, name+"="+url)
		}
	}
	c.start(m, "existing", initial)
}

// change tries a change of the members until the cluster is healthy enough for it. The new members are connected, and a leader is
// elected, only after a while.
func (c *growingCluster) change(what string, change func(ctx context.Context) error) {
	c.t.Helper()
	waitFor(c.t, what, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		err := change(ctx)
		if err == nil {
			return true
		}
		temporary := []error{
			rpctypes.ErrUnhealthy, rpctypes.ErrMemberNotEnoughStarted, rpctypes.ErrMemberLearnerNotReady, rpctypes.ErrNoLeader,
			rpctypes.ErrLeaderChanged, rpctypes.ErrTimeout, rpctypes.ErrTimeoutDueToLeaderFail, rpctypes.ErrTimeoutDueToConnectionLost,
		}
		if !slices.ContainsFunc(temporary, func(known error) bool { return errors.Is(err, known) }) {
			c.t.Fatalf("%s: %v", what, err)
		}
		return false
	})
}

// list returns the members by their names, as a member says.
func (c *growingCluster) list(at *growingMember) map[string]*pb.Member {
	c.t.Helper()
	found := map[string]*pb.Member{}
	waitFor(c.t, "the list of members", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		list, err := at.client.MemberList(ctx)
		if err != nil {
			return false
		}
		clear(found)
		for _, m := range list.Members {
			found[m.Name] = m
		}
		return true
	})
	return found
}

// verifyEnds waits until the process of a member that was removed ends, as etcd's does: without an error.
func (c *growingCluster) verifyEnds(m *growingMember) {
	c.t.Helper()
	select {
	case err := <-m.server.exited:
		m.server.exited <- err
		if err != nil {
			c.t.Errorf("member %s ended with %v", m.name, err)
		}
		if log := m.server.log.String(); !strings.Contains(log, "permanently removed from the cluster") {
			c.t.Errorf("member %s does not say why it ended:\n%s", m.name, log)
		}
	case <-time.After(startTimeout):
		c.t.Fatalf("member %s was removed, but runs", m.name)
	}
}

// growingWriter puts keys with a client that knows all members, and notes those that were acknowledged.
type growingWriter struct {
	mu           sync.Mutex
	acknowledged []string
	stop         chan struct{}
	done         sync.WaitGroup
}

func (c *growingCluster) startWriter() *growingWriter {
	w := &growingWriter{stop: make(chan struct{})}
	w.done.Go(func() {
		for number := 0; ; number++ {
			select {
			case <-w.stop:
				return
			default:
			}
			key := fmt.Sprintf("written/%06d", number)
			for _, client := range c.runningClients() {
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
				_, err := client.Put(ctx, key, key)
				cancel()
				if err == nil {
					w.mu.Lock()
					w.acknowledged = append(w.acknowledged, key)
					w.mu.Unlock()
					break
				}
			}
		}
	})
	return w
}

// membersMu protects the members of growing clusters, which writers read.
var membersMu sync.Mutex

func (c *growingCluster) runningClients() []*clientv3.Client {
	membersMu.Lock()
	defer membersMu.Unlock()
	var clients []*clientv3.Client
	for _, m := range c.members {
		if m.client != nil {
			clients = append(clients, m.client)
		}
	}
	return clients
}

// add adds a member by a command at another one, and starts it.
func (c *growingCluster) add(at *growingMember, name string, learner bool) (*growingMember, uint64) {
	c.t.Helper()
	membersMu.Lock()
	m := c.prepare(name)
	membersMu.Unlock()
	var added *clientv3.MemberAddResponse
	attempts := 0
	c.change("adding "+name, func(ctx context.Context) (err error) {
		if attempts++; attempts > 1 {
			// An attempt before may have succeeded, although its answer was an error that leaves this open.
			if added, err = listed(ctx, at, m.peerURL); added != nil || err != nil {
				return err
			}
		}
		if learner {
			added, err = at.client.MemberAddAsLearner(ctx, []string{m.peerURL})
		} else {
			added, err = at.client.MemberAdd(ctx, []string{m.peerURL})
		}
		return err
	})
	if added.Member.Name != "" || added.Member.IsLearner != learner || !slices.Equal(added.Member.PeerURLs, []string{m.peerURL}) {
		c.t.Errorf("the added member is %v", added.Member)
	}
	membersMu.Lock()
	c.join(m, added.Member, added.Members)
	membersMu.Unlock()
	return m, added.Member.ID
}

// listed returns the member with a peer URL as the answer to the command that has added it; nil if there is none.
func listed(ctx context.Context, at *growingMember, peerURL string) (*clientv3.MemberAddResponse, error) {
	list, err := at.client.MemberList(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range list.Members {
		if slices.Contains(m.PeerURLs, peerURL) {
			return &clientv3.MemberAddResponse{Member: m, Members: list.Members}, nil
		}
	}
	return nil, nil
}

// waitForMember waits until a member has its name, and votes or does not.
func (c *growingCluster) waitForMember(at *growingMember, name string, id uint64, learner bool) {
	c.t.Helper()
	waitFor(c.t, "member "+name, func() bool {
		m := c.list(at)[name]
		if m != nil && m.ID != id {
			c.t.Fatalf("member %s has the ID %x, and was added as %x", name, m.ID, id)
		}
		return m != nil && m.IsLearner == learner && len(m.ClientURLs) == 1
	})
}

// remove removes a member by a command at another one, and waits until its process ends.
func (c *growingCluster) remove(at, m *growingMember, id uint64) {
	c.t.Helper()
	attempts := 0
	c.change("removing "+m.name, func(ctx context.Context) error {
		attempts++
		_, err := at.client.MemberRemove(ctx, id)
		if attempts > 1 && errors.Is(err, rpctypes.ErrMemberNotFound) {
			return nil // an attempt before has succeeded
		}
		return err
	})
	membersMu.Lock()
	m.client = nil
	membersMu.Unlock()
	c.verifyEnds(m)
}

// verifyAcknowledged ends a writer, and reads what was acknowledged at a member.
func (c *growingCluster) verifyAcknowledged(at *growingMember, writer *growingWriter) {
	c.t.Helper()
	close(writer.stop)
	writer.done.Wait()
	found := map[string]bool{}
	waitFor(c.t, "a read", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		response, err := at.client.Get(ctx, "written/", clientv3.WithPrefix())
		if err != nil {
			return false
		}
		for _, kv := range response.Kvs {
			found[string(kv.Key)] = true
		}
		return true
	})
	for _, key := range writer.acknowledged {
		if !found[key] {
			c.t.Fatalf("the acknowledged write of %s is lost", key)
		}
	}
	if len(writer.acknowledged) == 0 {
		c.t.Fatal("no write was acknowledged")
	}
	c.t.Logf("%d acknowledged writes", len(writer.acknowledged))
}

// TestMembersAreChangedUnderLoad grows a cluster from one member to three and back, while a client writes. The commands are those
// of an operator: add a learner, promote it, add a voter, remove the leader. No acknowledged write may be lost.
func TestMembersAreChangedUnderLoad(t *testing.T) {
	for _, log := range []string{"fsync", "memory"} {
		t.Run(log, func(t *testing.T) {
			c := startGrowing(t, log)
			a := c.members["a"]
			writer := c.startWriter()

			b, idB := c.add(a, "b", true)
			c.waitForMember(a, "b", idB, true)
			c.change("promoting b", func(ctx context.Context) error {
				_, err := a.client.MemberPromote(ctx, idB)
				return err
			})
			c.waitForMember(b, "b", idB, false)

			third, idC := c.add(b, "c", false)
			c.waitForMember(b, "c", idC, false)
			waitFor(t, "three voters", func() bool {
				for _, m := range []*growingMember{a, b, third} {
					ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
					status, err := m.client.Status(ctx, m.server.address)
					cancel()
					if err != nil || status.IsLearner || status.Leader == 0 {
						return false
					}
				}
				return true
			})

			// The first member leads, unless the machine is very slow.
			c.remove(third, a, c.list(b)["a"].ID)
			if members := c.list(b); len(members) != 2 || members["b"].ID != idB || members["c"].ID != idC {
				t.Errorf("the members are %v", members)
			}
			// A member removes itself.
			c.remove(b, b, idB)

			c.verifyAcknowledged(third, writer)
			if members := c.list(third); len(members) != 1 || members["c"].ID != idC {
				t.Errorf("the members are %v", members)
			}
		})
	}
}

// verifyError checks the error of a command that changes the members.
func verifyError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v; want %v", what, err, want)
	}
}

// TestMemberCommandsAreRefusedAsEtcd checks the errors of the commands.
func TestMemberCommandsAreRefusedAsEtcd(t *testing.T) {
	c := startGrowing(t, "memory")
	a := c.members["a"]
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	own := c.list(a)["a"]
	unused := fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	cluster := a.server.dial().cluster
	_, err := cluster.MemberAdd(ctx, &pb.MemberAddRequest{PeerURLs: []string{"127.0.0.1:1"}})
	verifyError(t, "a bad URL", rpctypes.Error(err), rpctypes.ErrMemberBadURLs)
	_, err = cluster.MemberAdd(ctx, &pb.MemberAddRequest{})
	verifyError(t, "no URL", rpctypes.Error(err), rpctypes.ErrMemberBadURLs)
	_, err = a.client.MemberAdd(ctx, []string{own.PeerURLs[0]})
	verifyError(t, "a URL of another member", err, rpctypes.ErrPeerURLExist)
	_, err = a.client.MemberRemove(ctx, 77)
	verifyError(t, "removing an unknown member", err, rpctypes.ErrMemberNotFound)
	_, err = a.client.MemberUpdate(ctx, 77, []string{unused})
	verifyError(t, "updating an unknown member", err, rpctypes.ErrMemberNotFound)
	_, err = a.client.MemberPromote(ctx, 77)
	verifyError(t, "promoting an unknown member", err, rpctypes.ErrMemberNotFound)
	_, err = a.client.MemberPromote(ctx, own.ID)
	verifyError(t, "promoting a voter", err, rpctypes.ErrMemberNotLearner)
	_, err = a.client.MemberRemove(ctx, own.ID)
	verifyError(t, "removing the last member", err, rpctypes.ErrMemberNotEnoughStarted)
}

// TestMembersThatHaveNotStartedCount checks what is refused because of members that have not started.
func TestMembersThatHaveNotStartedCount(t *testing.T) {
	c := startGrowing(t, "memory")
	client := c.members["a"].client
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	url := func() []string { return []string{fmt.Sprintf("http://127.0.0.1:%d", freePort(t))} }
	learner, err := client.MemberAddAsLearner(ctx, url())
	if err != nil || !learner.Member.IsLearner {
		t.Fatalf("a learner: %v, %v", learner, err)
	}
	_, err = client.MemberPromote(ctx, learner.Member.ID)
	verifyError(t, "a learner that has not started", err, rpctypes.ErrMemberLearnerNotReady)
	_, err = client.MemberAddAsLearner(ctx, url())
	verifyError(t, "a second learner", err, rpctypes.ErrTooManyLearners)
	if _, err := client.MemberRemove(ctx, learner.Member.ID); err != nil {
		t.Error(err)
	}
	voter, err := client.MemberAdd(ctx, url())
	if err != nil || voter.Member.IsLearner {
		t.Fatalf("a voter: %v, %v", voter, err)
	}
	_, err = client.MemberAdd(ctx, url())
	verifyError(t, "a voter, while another has not started", err, rpctypes.ErrMemberNotEnoughStarted)
	if _, err := client.Put(ctx, "key", "value"); err != nil {
		t.Errorf("a put, while a voter has not started: %v", err)
	}
	if list, err := client.MemberRemove(ctx, voter.Member.ID); err != nil || len(list.Members) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}

// TestLearnersAnswerAsEtcd checks what a learner answers, and that its peer URLs can be changed.
func TestLearnersAnswerAsEtcd(t *testing.T) {
	c := startGrowing(t, "memory")
	a := c.members["a"]
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	b, id := c.add(a, "b", true)
	c.waitForMember(a, "b", id, true)
	c.verifyLearner(ctx, b)
	moved := fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	updated, err := a.client.MemberUpdate(ctx, id, []string{moved})
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(updated.Members, func(m *pb.Member) bool { return m.ID == id }); updated.Members[i].PeerURLs[0] != moved {
		t.Errorf("the members are %v", updated.Members)
	}
}

// verifyLearner checks which requests a learner answers.
func (c *growingCluster) verifyLearner(ctx context.Context, learner *growingMember) {
	t := c.t
	t.Helper()
	waitFor(t, "the state of the learner", func() bool {
		status, err := learner.client.Status(ctx, learner.server.address)
		return err == nil && status.IsLearner && status.Leader != 0
	})
	if _, err := learner.client.Get(ctx, "key", clientv3.WithSerializable()); err != nil {
		t.Errorf("a serializable read: %v", err)
	}
	if _, err := learner.client.Get(ctx, "key"); !isNotSupportedForLearner(err) {
		t.Errorf("a linearizable read: %v", err)
	}
	if _, err := learner.client.Put(ctx, "key", ""); !isNotSupportedForLearner(err) {
		t.Errorf("a put: %v", err)
	}
	if _, err := learner.client.MemberList(ctx); !isNotSupportedForLearner(err) {
		t.Errorf("a list of the members: %v", err)
	}
	if response := <-learner.client.Watch(ctx, "key"); !isNotSupportedForLearner(response.Err()) {
		t.Errorf("a watch: %v", response.Err())
	}
	response, err := http.Get("http://" + learner.server.address + "/readyz?verbose")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(page), "[-]non_learner failed") {
		t.Errorf("status %d: %s, %v", response.StatusCode, page, err)
	}
}

func isNotSupportedForLearner(err error) bool {
	return err != nil && strings.Contains(err.Error(), "etcdserver: rpc not supported for learner")
}

// TestSingleServerHasPeerURLs checks that a server without peers says which peer URLs it was given, as etcd does, and that its members
// cannot be changed.
func TestSingleServerHasPeerURLs(t *testing.T) {
	for _, flags := range [][]string{
		{"--initial-advertise-peer-urls", "http://127.0.0.1:7"},
		{"--initial-cluster", "default=http://127.0.0.1:7"},
	} {
		server := startMemEtcd(t, flags...)
		api := server.dial()
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		list, err := api.cluster.MemberList(ctx, &pb.MemberListRequest{})
		if err != nil || !slices.Equal(list.Members[0].PeerURLs, []string{"http://127.0.0.1:7"}) {
			t.Errorf("%v: %v, %v", flags, list, err)
		}
		_, err = api.cluster.MemberAdd(ctx, &pb.MemberAddRequest{PeerURLs: []string{"http://127.0.0.1:8"}})
		if err == nil || !strings.Contains(err.Error(), "--replication-log") {
			t.Errorf("a member is added to a server without peers: %v", err)
		}
	}
}

// TestSnapshotIsRestoredIntoCluster restores a snapshot into a member, and adds another one, which gets the state from it. Both
// compare their contents, and have directories for their snapshots.
func TestSnapshotIsRestoredIntoCluster(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	source := startMemEtcd(t)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{source.address}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for i := range 100 {
		if _, err := client.Put(ctx, fmt.Sprintf("key/%d", i), "value"); err != nil {
			t.Fatal(err)
		}
	}
	saved, err := client.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(saved)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "snapshot")
	mustWrite(t, file, string(content))

	c := newGrowing(t, "fsync")
	a := c.prepare("a")
	snapshots := t.TempDir()
	a.args = []string{
		"--snapshot-dir", snapshots, "--feature-gates", "InitialCorruptCheck=true,CompactHashCheck=true", "--corrupt-check-time", "100ms",
		"--snapshot-send-rate", "100000000",
	}
	restore := func(initialCluster string) (string, error) {
		output, err := exec.Command(binary(t, "mem_etcd"), "snapshot", "restore", file, "--data-dir", a.dataDir, "--name", "a",
			"--initial-cluster", initialCluster, "--replication-log", "fsync", "--snapshot-dir", snapshots).CombinedOutput()
		return string(output), err
	}
	if output, err := restore("a=" + a.peerURL + ",b=http://127.0.0.1:1"); err == nil || !strings.Contains(output, "member add") {
		t.Errorf("a restore of two members: %v: %s", err, output)
	}
	if output, err := restore("a=" + a.peerURL); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	if output, err := restore("a=" + a.peerURL); err == nil {
		t.Errorf("a directory is restored twice: %s", output)
	}
	if found, err := filepath.Glob(filepath.Join(snapshots, "replica", "*.snap")); err != nil || len(found) != 1 {
		t.Errorf("the snapshot directory has the snapshots %q (%v), want one", found, err)
	}
	c.startFirst(a)
	b, idB := c.add(a, "b", false)
	c.waitForMember(a, "b", idB, false)
	waitFor(t, "a comparison with the second member", func() bool {
		return strings.Contains(a.server.log.String(), `"message":"compared the members","revision":1000000101,"equal":1,"members":2`)
	})
	waitFor(t, "the keys at the second member", func() bool {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		response, err := b.client.Get(ctx, "key/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && response.Count == 100 && response.Header.Revision >= 1_000_000_000
	})
}
