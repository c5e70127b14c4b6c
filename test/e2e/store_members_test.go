package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const memberNodes = 20

// TestStoreMembers runs a cluster on a store with three members: it kills, cuts off and replaces members under pods, stops
// and starts the cluster, saves it and restores it. With mem_etcd it runs only if STORE_FAULTS is set (make store-faults).
func TestStoreMembers(t *testing.T) {
	for store, title := range map[string]string{
		"etcd":     "(etcd, 3 members, kube-scheduler)",
		"mem_etcd": "(mem_etcd, 3 members, replication-log buffered, kube-scheduler)",
	} {
		t.Run(store, func(t *testing.T) {
			if store == "mem_etcd" && os.Getenv("STORE_FAULTS") == "" {
				t.Skip("only if STORE_FAULTS is set")
			}
			storeHasMembers(t, store, title)
		})
	}
}

// storeHasMembers is [TestStoreMembers] for a store, which the status describes in its first line.
func storeHasMembers(t *testing.T, store, title string) {
	w := newWorkspace(t)
	t.Cleanup(func() {
		for _, name := range []string{"members", "copy"} {
			w.k1m(t, "down", "--name", name)
		}
	})
	t.Log(w.succeed(t, "up", "--name", "members", "--store", store, "--store-replicas", "3", "--store-faults", "--nodes", fmt.Sprint(memberNodes)).stdout)
	statusShowsMembers(t, w, title)
	refusedFaults(t, w)

	pods := 0
	create := func() {
		pods += 20
		w.succeed(t, "pods", "create", "--name", "members", "--count", "20", "--prefix", fmt.Sprintf("pods-%d-", pods))
		if s := w.status(t, "members"); s.Pods.ByPhase["Running"] != pods {
			t.Fatalf("there are %+v, want %d running pods", s.Pods, pods)
		}
	}
	leader := w.status(t, "members").StoreLeader
	before := w.status(t, "members").component(t, leader)
	w.succeed(t, "store", "kill", "leader", "--name", "members")
	create()
	w.awaitRestart(t, "members", before)

	leader = w.status(t, "members").StoreLeader
	w.succeed(t, "store", "partition", leader, "--for", "1h", "--name", "members")
	awaitLeader(t, w, func(name string) bool { return name != "" && name != leader })
	create()
	w.succeed(t, "store", "partition", leader, "--for", "0s", "--name", "members")
	awaitRunning(t, w)

	replaceFollower(t, w)
	create()
	file := stopAndStartMembers(t, w, pods)
	// A mem_etcd with several members cannot be restored yet.
	if store == "etcd" {
		restoreMembers(t, w, file, pods)
	}
}

func statusShowsMembers(t *testing.T, w *workspace, title string) {
	t.Helper()
	awaitLeader(t, w, func(name string) bool { return name != "" })
	text := w.succeed(t, "status", "--name", "members").stdout
	for _, want := range []string{title, "Leader:     store-", "store-1 ", "store-2 ", "store-3 "} {
		if !strings.Contains(text, want) {
			t.Errorf("k1m status printed\n%s\nwant %q in it", text, want)
		}
	}
	if page := w.succeed(t, "metrics", "prometheus", "--name", "members").stdout; !strings.Contains(page, "instance: store-3") {
		t.Errorf("the Prometheus configuration has no store-3:\n%s", page)
	}
}

// refusedFaults checks the errors of commands that cannot be executed.
func refusedFaults(t *testing.T, w *workspace) {
	t.Helper()
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"store", "kill", "store-9", "--name", "members"}, 2, "choose store-1, store-2, store-3 or leader"},
		{[]string{"store", "partition", "store-1", "--for", "-1s", "--name", "members"}, 2, "--for -1s: choose 0s or more"},
		{[]string{"store", "replace", "store-1", "--name", "nosuch"}, 1, "no such cluster"},
		{[]string{"up", "--name", "members", "--store-replicas", "5"}, 1, "--store-replicas is 3"},
	} {
		if r := w.k1m(t, c.args...); r.code != c.code || !strings.Contains(r.stderr, c.want) {
			t.Errorf("k1m %s: exit code %d, %q, want %d with %q", strings.Join(c.args, " "), r.code, r.stderr, c.code, c.want)
		}
	}
}

// awaitLeader waits until the status names a leader that fulfils a condition.
func awaitLeader(t *testing.T, w *workspace, wanted func(string) bool) {
	t.Helper()
	eventually(t, patience, "another member leads", func() error {
		if s := w.status(t, "members"); !wanted(s.StoreLeader) {
			return fmt.Errorf("the leader is %q; problems: %q", s.StoreLeader, s.Problems)
		}
		return nil
	})
}

func awaitRunning(t *testing.T, w *workspace) {
	t.Helper()
	eventually(t, patience, "the cluster runs", func() error {
		if s := w.status(t, "members"); s.State != "running" || len(s.Problems) > 0 {
			return fmt.Errorf("it is %s with the problems %q", s.State, s.Problems)
		}
		return nil
	})
}

// replaceFollower replaces a member that does not lead. It must come back as another member.
func replaceFollower(t *testing.T, w *workspace) {
	t.Helper()
	leader := w.status(t, "members").StoreLeader
	follower := "store-1"
	if leader == follower {
		follower = "store-2"
	}
	before := memberIDs(t, w, leader)
	w.succeed(t, "store", "replace", follower, "--name", "members")
	after := memberIDs(t, w, leader)
	if len(after) != 3 || after[follower] == before[follower] || after[leader] != before[leader] {
		t.Errorf("the members are %v before and %v after %s was replaced", before, after, follower)
	}
	awaitRunning(t, w)
}

// memberIDs returns the IDs of the members by name.
func memberIDs(t *testing.T, w *workspace, member string) map[string]uint64 {
	t.Helper()
	list, err := clientOfStore(t, w, "members", member).MemberList(t.Context())
	must(t, err)
	ids := map[string]uint64{}
	for _, listed := range list.Members {
		ids[listed.Name] = listed.ID
	}
	return ids
}

// stopAndStartMembers stops the cluster, saves it to a file, and starts it again.
func stopAndStartMembers(t *testing.T, w *workspace, pods int) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "members.k1m")
	w.succeed(t, "down", "--name", "members", "--keep-data")
	w.assertNothingRuns(t)
	w.succeed(t, "snapshot", "save", "members", file)
	w.succeed(t, "up", "--name", "members")
	if s := w.status(t, "members"); s.Pods.Total != pods || s.Nodes.Ready != memberNodes {
		t.Errorf("after a restart there are %+v and %+v, want %d pods", s.Pods, s.Nodes, pods)
	}
	return file
}

// restoreMembers removes the cluster, and restores it under another name.
func restoreMembers(t *testing.T, w *workspace, file string, pods int) {
	t.Helper()
	w.succeed(t, "down", "--name", "members")
	w.succeed(t, "snapshot", "restore", "copy", file)
	w.succeed(t, "up", "--name", "copy")
	if s := w.status(t, "copy"); s.Pods.Total != pods || len(s.Components) < 3 || s.component(t, "store-3").State != "ready" {
		t.Errorf("the restored cluster has %+v and %+v, want %d pods and three members", s.Pods, s.Components, pods)
	}
}
