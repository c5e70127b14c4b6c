package e2e

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestProfile starts a cluster with a profile: its settings are printed with their reasons and kept, flags of the user
// win, and nodes are written into the store.
func TestProfile(t *testing.T) {
	const name, nodes = "profile", "30"
	w := newWorkspace(t)
	t.Cleanup(func() { w.k1m(t, "down", "--name", name) })
	if r := w.k1m(t, "up", "--name", name, "--profile", "huge"); r.code != 2 || !strings.Contains(r.stderr, "10k, 50k, 200k, 700k") {
		t.Errorf("an unknown profile: exit code %d, %s", r.code, r.stderr)
	}
	printed := w.succeed(t, "up", "--name", name, "--nodes", nodes, "--store", storeKind(), "--profile", "50k", "--scheduler", "kube-scheduler").stdout
	for _, want := range []string{"Profile 50k", "--node-simulator node-sim: ", "--gateway-arg node-path-leases=on: ", "--seed-store: ", "--gateway: ", "nodes seeded"} {
		if !strings.Contains(printed, want) {
			t.Errorf("k1m up does not print %q:\n%s", want, printed)
		}
	}
	if strings.Contains(printed, "--scheduler dist-scheduler") {
		t.Errorf("the profile overrides --scheduler:\n%s", printed)
	}
	checkProfile(t, w, name, "50k")
	w.succeed(t, "down", "--name", name, "--keep-data")
	w.succeed(t, "up", "--name", name)
	checkProfile(t, w, name, "50k")
	w.succeed(t, "down", "--name", name, "--keep-data")
	w.succeed(t, "up", "--name", name, "--profile", "none")
	checkProfile(t, w, name, "")
}

// checkProfile checks the profile in the status of a cluster, and whether its components are those of the profile.
func checkProfile(t *testing.T, w *workspace, name, want string) {
	t.Helper()
	var got struct {
		Scheduler  string
		Profile    struct{ Name string }
		Components []struct{ Name, State string }
		Nodes      struct{ Ready int }
	}
	if err := json.Unmarshal([]byte(w.succeed(t, "status", "--name", name, "-o", "json").stdout), &got); err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for _, c := range got.Components {
		has[c.Name] = c.State == "ready"
	}
	if got.Profile.Name != want || got.Scheduler != "kube-scheduler" || has["node-sim"] != (want != "") || has["kube-gateway"] != (want != "") {
		t.Errorf("the status is %+v, want profile %q and its components", got, want)
	}
	if got.Nodes.Ready != 30 {
		t.Errorf("%d nodes are Ready, want 30", got.Nodes.Ready)
	}
}
