package store

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// memberNames are the names of the members of a test cluster.
var memberNames = []string{"a", "b", "c"}

// storeCluster is three processes of mem_etcd that are members of a cluster, with a client for each.
type storeCluster struct {
	t       *testing.T
	members []*server
	clients []*clientv3.Client
}

// startCluster starts a cluster whose members keep their logs as --replication-log says.
func startCluster(t *testing.T, log string) *storeCluster {
	t.Helper()
	c := &storeCluster{t: t}
	var initial, peers []string
	for _, name := range memberNames {
		peer := fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
		peers = append(peers, peer)
		initial = append(initial, name+"="+peer)
	}
	for i, name := range memberNames {
		address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
		args := []string{
			"--name", name, "--initial-cluster", strings.Join(initial, ","), "--initial-cluster-token", t.Name(),
			"--initial-cluster-state", "new", "--listen-peer-urls", peers[i], "--initial-advertise-peer-urls", peers[i],
			"--listen-client-urls", "http://" + address, "--advertise-client-urls", "http://" + address,
			"--replication-log", log,
		}
		if log != "memory" {
			args = append(args, "--data-dir", filepath.Join(t.TempDir(), name))
		}
		member := &server{t: t, address: address, args: args}
		member.startWithoutWaiting(binary(t, "mem_etcd"))
		c.members = append(c.members, member)
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		c.clients = append(c.clients, client)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for i, member := range c.members {
				t.Logf("log of member %s:\n%s", memberNames[i], member.log)
			}
		}
	})
	c.waitHealthy(0, 1, 2)
	return c
}

// waitHealthy waits until these members answer linearizable reads.
func (c *storeCluster) waitHealthy(members ...int) {
	c.t.Helper()
	for _, i := range members {
		waitFor(c.t, "member "+memberNames[i], func() bool {
			response, err := http.Get("http://" + c.members[i].address + "/health")
			if err != nil {
				return false
			}
			response.Body.Close()
			return response.StatusCode == http.StatusOK
		})
	}
}

// status returns the status of a member, or nil if it does not answer.
func (c *storeCluster) status(i int) *clientv3.StatusResponse {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	status, err := c.clients[i].Status(ctx, c.members[i].address)
	if err != nil {
		return nil
	}
	return status
}

// leader waits until these members know the same leader among them, and returns it.
func (c *storeCluster) leader(members ...int) int {
	c.t.Helper()
	leader := -1
	waitFor(c.t, "a leader that all members know", func() bool {
		leaders := map[uint64]bool{}
		leader = -1
		for _, i := range members {
			status := c.status(i)
			if status == nil {
				return false
			}
			leaders[status.Leader] = true
			if status.Leader == status.Header.MemberId {
				leader = i
			}
		}
		return len(leaders) == 1 && leader >= 0
	})
	return leader
}

// put puts a key at a member until it is acknowledged. After an error it may have been put, so the
// value of a key is always the same.
func (c *storeCluster) put(i int, key string) {
	c.t.Helper()
	waitFor(c.t, fmt.Sprintf("put at member %s", memberNames[i]), func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err := c.clients[i].Put(ctx, key, key)
		return err == nil
	})
}

// clusterWriters put keys at all members of a cluster, and note those that were acknowledged.
type clusterWriters struct {
	mu           sync.Mutex
	acknowledged []string
	stop         chan struct{}
	done         sync.WaitGroup
}

func (c *storeCluster) startWriters(perMember int) *clusterWriters {
	w := &clusterWriters{stop: make(chan struct{})}
	for i, client := range c.clients {
		for n := range perMember {
			w.done.Go(func() {
				for number := 0; ; number++ {
					select {
					case <-w.stop:
						return
					default:
					}
					key := fmt.Sprintf("written/%s/%d/%06d", memberNames[i], n, number)
					ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
					_, err := client.Put(ctx, key, key)
					cancel()
					if err == nil {
						w.mu.Lock()
						w.acknowledged = append(w.acknowledged, key)
						w.mu.Unlock()
					}
				}
			})
		}
	}
	return w
}

func (w *clusterWriters) finish() []string {
	close(w.stop)
	w.done.Wait()
	return w.acknowledged
}

// keys returns all keys with a prefix at a member, by a linearizable read.
func (c *storeCluster) keys(i int, prefix string) map[string]string {
	c.t.Helper()
	found := map[string]string{}
	waitFor(c.t, "a read at member "+memberNames[i], func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		response, err := c.clients[i].Get(ctx, prefix, clientv3.WithPrefix())
		if err != nil {
			return false
		}
		for _, kv := range response.Kvs {
			found[string(kv.Key)] = string(kv.Value)
		}
		return true
	})
	return found
}

// verifyEqual waits until all members have the same revision, and compares their histories.
func (c *storeCluster) verifyEqual() {
	c.t.Helper()
	waitFor(c.t, "the same history at all members", func() bool {
		var hashes []string
		for i := range c.members {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			hash, err := c.clients[i].HashKV(ctx, c.members[i].address, 0)
			cancel()
			if err != nil {
				return false
			}
			hashes = append(hashes, fmt.Sprintf("revision %d: %08x", hash.Header.Revision, hash.Hash))
		}
		return hashes[0] == hashes[1] && hashes[1] == hashes[2]
	})
}

// TestClusterSurvivesLeaders kills the leader of a cluster again and again while clients write at all
// members. Every acknowledged write must be there afterwards, at every member.
func TestClusterSurvivesLeaders(t *testing.T) {
	for _, log := range []string{"fsync", "buffered", "memory"} {
		t.Run(log, func(t *testing.T) {
			c := startCluster(t, log)
			writers := c.startWriters(2)
			for kill := range 4 {
				leader := c.leader(0, 1, 2)
				c.members[leader].kill()
				others := slices.DeleteFunc([]int{0, 1, 2}, func(i int) bool { return i == leader })
				for _, i := range others {
					c.put(i, fmt.Sprintf("after-kill/%d/%d", kill, i))
				}
				c.members[leader].restart()
				c.waitHealthy(0, 1, 2)
				if log == "memory" {
					c.waitForVoters(3)
				}
			}
			acknowledged := writers.finish()
			if len(acknowledged) == 0 {
				t.Fatal("no write was acknowledged")
			}
			for i := range c.members {
				found := c.keys(i, "written/")
				for _, key := range acknowledged {
					if found[key] != key {
						t.Fatalf("member %s lost the acknowledged write of %s", memberNames[i], key)
					}
				}
				if after := c.keys(i, "after-kill/"); len(after) != 8 {
					t.Fatalf("member %s has %d of 8 keys that were put after kills", memberNames[i], len(after))
				}
			}
			c.verifyEqual()
			c.verifyWatches()
			t.Logf("%d acknowledged writes, 4 killed leaders", len(acknowledged))
		})
	}
}

// waitForVoters waits until a member that has lost its log is a voter again, with a new identity.
func (c *storeCluster) waitForVoters(count int) {
	c.t.Helper()
	waitFor(c.t, "the new identity of a member without disk", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		list, err := c.clients[0].MemberList(ctx)
		if err != nil || len(list.Members) != count {
			return false
		}
		for i := range c.members {
			status := c.status(i)
			isVoter := func(m *pb.Member) bool { return status != nil && m.ID == status.Header.MemberId && !m.IsLearner }
			if !slices.ContainsFunc(list.Members, isVoter) {
				return false
			}
		}
		return true
	})
}

// verifyWatches reads the whole history at every member by a watch, and compares the events.
func (c *storeCluster) verifyWatches() {
	c.t.Helper()
	revision := c.status(0).Header.Revision
	var first []string
	for i, client := range c.clients {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		var events []string
		for response := range client.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(1)) {
			if err := response.Err(); err != nil {
				c.t.Fatal(err)
			}
			for _, event := range response.Events {
				events = append(events, fmt.Sprintf("%d %s %s", event.Kv.ModRevision, event.Type, event.Kv.Key))
			}
			if len(events) > 0 && response.Events[len(response.Events)-1].Kv.ModRevision >= revision {
				break
			}
		}
		cancel()
		if i == 0 {
			first = events
		}
		if len(events) == 0 || !slices.Equal(events, first) {
			c.t.Fatalf("member %s delivers %d events, member %s %d", memberNames[i], len(events), memberNames[0], len(first))
		}
	}
}

// TestClusterAnswersAsEtcd checks what etcd's clients read about a cluster.
func TestClusterAnswersAsEtcd(t *testing.T) {
	c := startCluster(t, "memory")
	leader := c.leader(0, 1, 2)
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	list, err := c.clients[0].MemberList(ctx)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]uint64{}
	for _, member := range list.Members {
		names[member.Name] = member.ID
		if len(member.PeerURLs) != 1 || len(member.ClientURLs) != 1 || member.IsLearner {
			t.Errorf("unexpected member %v", member)
		}
	}
	if len(names) != 3 {
		t.Fatalf("members %v", list.Members)
	}
	leaderID := names[memberNames[leader]]
	for i := range c.members {
		status := c.status(i)
		if status.Header.MemberId != names[memberNames[i]] || status.Leader != leaderID {
			t.Errorf("member %s says that it is %x, and that %x leads", memberNames[i], status.Header.MemberId, status.Leader)
		}
		if status.RaftTerm < 2 || status.RaftTerm != status.Header.RaftTerm || status.RaftIndex == 0 {
			t.Errorf("member %s: term %d, term of the header %d, index %d", memberNames[i], status.RaftTerm, status.Header.RaftTerm, status.RaftIndex)
		}
	}

	// The leadership moves on request, and only the leader can move it.
	target := (leader + 1) % 3
	if _, err := c.clients[target].MoveLeader(ctx, leaderID); !errors.Is(err, rpctypes.ErrNotLeader) {
		t.Errorf("a follower moves the leadership: %v", err)
	}
	waitFor(t, "member "+memberNames[target]+" as the leader", func() bool {
		leader := c.leader(0, 1, 2)
		if leader != target {
			// On a busy machine, the members may elect another leader meanwhile.
			_, _ = c.clients[leader].MoveLeader(ctx, names[memberNames[target]])
		}
		return leader == target
	})

	// A lease that is granted and renewed at followers.
	follower := (target + 1) % 3
	lease, err := c.clients[follower].Grant(ctx, 60)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.clients[follower].Put(ctx, "leased", "", clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	for _, client := range c.clients {
		if renewed, err := client.KeepAliveOnce(ctx, lease.ID); err != nil || renewed.TTL != 60 {
			t.Errorf("renewal: %v, %v", renewed, err)
		}
	}
	if _, err := c.clients[leader].Revoke(ctx, lease.ID); err != nil {
		t.Error(err)
	}
	if response, err := c.clients[follower].Get(ctx, "leased"); err != nil || response.Count != 0 {
		t.Errorf("the key of a revoked lease: %v, %v", response, err)
	}

	// Transactions and compactions at a follower.
	txn := c.clients[follower].Txn(ctx).If(clientv3.Compare(clientv3.Version("new"), "=", 0))
	if response, err := txn.Then(clientv3.OpPut("new", "1"), clientv3.OpGet("new")).Commit(); err != nil || !response.Succeeded {
		t.Errorf("transaction: %v, %v", response, err)
	}
	revision := c.status(follower).Header.Revision
	if _, err := c.clients[follower].Compact(ctx, revision); err != nil {
		t.Error(err)
	}
	for i, client := range c.clients {
		if _, err := client.Get(ctx, "new"); err != nil {
			t.Error(err)
		}
		if _, err := client.Get(ctx, "new", clientv3.WithRev(revision-1)); !errors.Is(err, rpctypes.ErrCompacted) {
			t.Errorf("member %s reads a compacted revision: %v", memberNames[i], err)
		}
	}

	// A clean shutdown lets another member lead first.
	if err := c.members[target].stop(); err != nil {
		t.Errorf("the leader ends with %v", err)
	}
	others := slices.DeleteFunc([]int{0, 1, 2}, func(i int) bool { return i == target })
	c.leader(others...)
	c.put(others[0], "after-shutdown")
}

// TestClusterWithoutQuorum suspends two of three members. The third one must say that there is no
// leader, acknowledge nothing, and recover.
func TestClusterWithoutQuorum(t *testing.T) {
	c := startCluster(t, "memory")
	c.leader(0, 1, 2)
	c.put(0, "before")
	for _, i := range []int{1, 2} {
		if err := c.members[i].cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "no leader", func() bool {
		status := c.status(0)
		return status != nil && status.Leader == 0 && slices.Contains(status.Errors, "etcdserver: no leader")
	})
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if response, err := c.clients[0].Get(ctx, "before", clientv3.WithSerializable()); err != nil || response.Count != 1 {
		t.Errorf("a serializable read: %v, %v", response, err)
	}
	watch := c.clients[0].Watch(clientv3.WithRequireLeader(ctx), "before")
	if response := <-watch; !errors.Is(response.Err(), rpctypes.ErrNoLeader) {
		t.Errorf("a watch that requires a leader: %v", response.Err())
	}
	if _, err := c.clients[0].Put(ctx, "without", ""); err == nil {
		t.Error("a write is acknowledged without a quorum")
	}
	for _, i := range []int{1, 2} {
		if err := c.members[i].cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	c.waitHealthy(0, 1, 2)
	c.put(0, "after")
	c.verifyEqual()
}
