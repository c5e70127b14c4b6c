package store

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// ctl runs etcdctl against one server and stores output for later commands.
type ctl struct {
	t      *testing.T
	name   string
	server *server
	known  map[string]string
}

// twoCtls are etcdctl against etcd and against mem_etcd.
func twoCtls(t *testing.T) []*ctl {
	return []*ctl{
		{t, "etcd", startEtcd(t), map[string]string{}},
		{t, "mem_etcd", startMemEtcd(t), map[string]string{}},
	}
}

func (c *ctl) command(args ...string) *exec.Cmd {
	c.t.Helper()
	for i, arg := range args {
		if value, ok := c.known[arg]; ok {
			args[i] = value
		}
	}
	cmd := exec.Command(binary(c.t, "etcdctl"), args...)
	cmd.Env = append(os.Environ(), "ETCDCTL_ENDPOINTS=http://"+c.server.address)
	return cmd
}

// run returns output and exit code in one string.
func (c *ctl) run(stdin string, args ...string) string {
	c.t.Helper()
	cmd := c.command(args...)
	cmd.Stdin = strings.NewReader(stdin)
	output, err := cmd.CombinedOutput()
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		c.t.Fatal(err)
	}
	return fmt.Sprintf("%sexit code %d\n", output, cmd.ProcessState.ExitCode())
}

// learn stores a part of the output of a command for later commands.
func (c *ctl) learn(name, expression, output string) {
	c.t.Helper()
	found := regexp.MustCompile(expression).FindStringSubmatch(output)
	if found == nil {
		c.t.Fatalf("%s: no %s in %s", c.name, expression, output)
	}
	c.known[name] = found[1]
}

// vary lists the parts of the output that differ between servers.
var vary = []struct {
	*regexp.Regexp
	by string
}{
	{regexp.MustCompile(`https?://127\.0\.0\.1:\d+|127\.0\.0\.1:\d+`), "ADDRESS"},
	{regexp.MustCompile(`\b[0-9a-f]{12,16}\b`), "ID"},
	{regexp.MustCompile(`\b\d{12,20}\b`), "ID"},
	{regexp.MustCompile(`\d+(\.\d+)?(µs|ms|s)\b`), "TIME"},
	{regexp.MustCompile(`/\S+/snapshot`), "FILE"},
	// Log lines of the client.
	{regexp.MustCompile(`(?m)^\{"level".*\n`), ""},
}

func steady(output string) string {
	for _, v := range vary {
		output = v.ReplaceAllString(output, v.by)
	}
	return output
}

// TestEtcdctlAsEtcd runs the commands of etcdctl against both servers and compares the
// output.
func TestEtcdctlAsEtcd(t *testing.T) {
	ctls := twoCtls(t)
	for _, c := range ctls {
		c.learn("$LEASE", `lease ([0-9a-f]+) granted`, c.run("", "lease", "grant", "500"))
		c.learn("$GONE", `lease ([0-9a-f]+) granted`, c.run("", "lease", "grant", "500"))
		c.learn("$MEMBER", `^([0-9a-f]+), started`, c.run("", "member", "list"))
		c.known["$FILE"] = filepath.Join(t.TempDir(), "snapshot")
	}
	for _, step := range []struct{ command, stdin string }{
		{"version", ""},
		{"put a 1", ""},
		{"put b", "from standard input"},
		{"put a 2 --prev-kv", ""},
		{"put a --ignore-value", ""},
		{"put none --ignore-value", ""},
		{"put leased 1 --lease $LEASE", ""},
		{"put leased 2 --ignore-lease -w json", ""},
		{"put c 1 --lease 1234", ""},
		{"put gone 1 --lease $GONE", ""},
		{"get a", ""},
		{"get none", ""},
		{"get a -w fields", ""},
		{"get a -w json", ""},
		{"get --prefix --keys-only l", ""},
		{"get --from-key b --limit 2 --print-value-only", ""},
		{"get a z --order DESCEND --sort-by MODIFY", ""},
		{"get a z --count-only -w fields", ""},
		{"get a --rev 2", ""},
		{"get a --rev 200", ""},
		{"get a --consistency s", ""},
		{"txn", "value(\"a\") = \"2\"\nmod(\"b\") > \"0\"\n\nput a 3\nget a\n\nput b never\n\n"},
		{"txn -i -w json", "ver(\"a\") = \"77\"\n\nput a never\n\ndel b --prev-kv\nget leased\n\n"},
		{"txn", "create(\"a\") > \"0\"\n\nput a 4\nput a 5\n\n\n"},
		{"del none", ""},
		{"del a --prev-kv", ""},
		{"del --prefix le -w json", ""},
		{"put a again", ""},
		{"lease list", ""},
		{"lease timetolive $LEASE --keys -w json", ""},
		{"lease timetolive 7777 -w json", ""},
		{"lease keep-alive $LEASE --once", ""},
		{"lease keep-alive 7777 --once", ""},
		{"lease revoke $GONE", ""},
		{"lease revoke 7777", ""},
		{"get gone", ""},
		{"lease revoke $LEASE", ""},
		{"lease list", ""},
		{"compaction 5", ""},
		{"compaction 5", ""},
		{"compaction 500", ""},
		{"compaction 8 --physical", ""},
		{"get a --rev 4", ""},
		{"watch a --rev 4", ""},
		{"endpoint health", ""},
		{"endpoint health --cluster -w json", ""},
		{"endpoint hashkv", ""},
		{"endpoint hashkv --rev 900", ""},
		{"alarm list", ""},
		{"alarm disarm", ""},
		{"defrag", ""},
		{"defrag --cluster", ""},
		{"snapshot save $FILE", ""},
		{"move-leader $MEMBER", ""},
		{"move-leader 1234", ""},
		{"downgrade validate 3.6", ""},
		{"downgrade validate 3.5", ""},
		{"downgrade cancel", ""},
		{"lock name echo held", ""},
		{"lock name --ttl 5 false", ""},
		{"get name --prefix", ""},
		{"auth status", ""},
	} {
		want := steady(ctls[0].run(step.stdin, strings.Fields(step.command)...))
		got := steady(ctls[1].run(step.stdin, strings.Fields(step.command)...))
		if want != got {
			t.Errorf("%s\netcd:\n%s\nmem_etcd:\n%s", step.command, want, got)
		}
	}
}

// TestEtcdctlStatus compares only the form of values that cannot be equal: sizes, Raft
// indices, peers.
func TestEtcdctlStatus(t *testing.T) {
	numbers := regexp.MustCompile(`\d+(\.\d+)?`)
	shapes := map[string]map[string]string{}
	for _, c := range twoCtls(t) {
		c.run("", "put", "a", "b")
		shapes[c.name] = map[string]string{}
		for _, command := range []string{"endpoint status -w json", "endpoint status -w fields", "member list -w json"} {
			shape := numbers.ReplaceAllString(steady(c.run("", strings.Fields(command)...)), "N")
			// mem_etcd has no peers, so it has no peer URLs.
			shape = strings.ReplaceAll(shape, `"peerURLs":["ADDRESS"],`, "")
			shapes[c.name][command] = shape
		}
	}
	for command, want := range shapes["etcd"] {
		got := shapes["mem_etcd"][command]
		// etcd's default quota is 2 GiB. mem_etcd's is 0, which JSON omits.
		want = strings.ReplaceAll(want, `,"dbSizeQuota":N`, "")
		if want != got {
			t.Errorf("%s\netcd:\n%s\nmem_etcd:\n%s", command, want, got)
		}
	}
}

// TestEtcdctlAuth checks that auth commands fail with etcd's messages.
func TestEtcdctlAuth(t *testing.T) {
	server := startMemEtcd(t, "--wal-mode", "none")
	for _, command := range []string{"auth enable", "user list", "role list", "user add u:p", "role add r"} {
		output, err := server.etcdctl(strings.Fields(command)...)
		if err == nil || !strings.Contains(output, "authentication is not enabled") {
			t.Errorf("%s: %v %s", command, err, output)
		}
	}
}

// running is a command that runs until it is interrupted.
type running struct {
	c     *ctl
	cmd   *exec.Cmd
	stdin interface{ Write([]byte) (int, error) }
	mu    sync.Mutex
	text  bytes.Buffer
}

func (r *running) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *running) output() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

func (c *ctl) start(args ...string) *running {
	c.t.Helper()
	r := &running{c: c, cmd: c.command(args...)}
	r.cmd.Stdout, r.cmd.Stderr, r.cmd.WaitDelay = r, r, 5*time.Second
	stdin, err := r.cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	r.stdin = stdin
	if err := r.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(r.end)
	return r
}

// end interrupts the command as Ctrl-C does.
func (r *running) end() {
	_ = r.cmd.Process.Signal(syscall.SIGINT)
	timer := time.AfterFunc(5*time.Second, func() { _ = r.cmd.Process.Kill() })
	defer timer.Stop()
	_ = r.cmd.Wait()
}

// say writes a line to the standard input of the command.
func (r *running) say(line string) {
	r.c.t.Helper()
	if _, err := fmt.Fprintln(r.stdin, line); err != nil {
		r.c.t.Fatal(err)
	}
}

// wants waits until the command has printed the text.
func (r *running) wants(text string) {
	r.c.t.Helper()
	waitFor(r.c.t, fmt.Sprintf("%s: %q after %s", r.c.name, text, r.output()), func() bool {
		return strings.Contains(r.output(), text)
	})
}

// TestEtcdctlThatRuns checks commands that run until they are interrupted.
func TestEtcdctlThatRuns(t *testing.T) {
	outputs := map[string][]string{}
	for _, c := range twoCtls(t) {
		watch := c.start("watch", "--prefix", "w", "--rev", "2", "--prev-kv")
		typed := c.start("watch", "-i")
		typed.say("watch typed")
		elect := c.start("elect", "e", "mine")
		elect.wants("mine")
		observe := c.start("elect", "-l", "e")
		observe.wants("mine")
		c.learn("$LEASE", `lease ([0-9a-f]+) granted`, c.run("", "lease", "grant", "2"))
		alive := c.start("lease", "keep-alive", "$LEASE")
		alive.wants("keepalived")

		c.run("", "put", "w1", "one")
		c.run("", "put", "w2", "two", "--lease", "$LEASE")
		c.run("", "put", "w1", "three")
		c.run("", "del", "w1")
		watch.wants("DELETE")
		// Waits until the watcher without output exists.
		waitFor(t, "what was typed", func() bool {
			c.run("", "put", "typed", "seen")
			return strings.Contains(typed.output(), "seen")
		})
		typed.say("progress")
		typed.wants("progress notify:")
		first := c.start("lock", "l")
		first.wants("l/")
		second := c.start("lock", "l", "echo", "got it")
		first.end()
		second.wants("got it")
		elect.end()
		watch.end()
		outputs[c.name] = []string{steady(watch.output()), steady(elect.output())}
	}
	for i, want := range outputs["etcd"] {
		if got := outputs["mem_etcd"][i]; got != want {
			t.Errorf("etcd:\n%s\nmem_etcd:\n%s", want, got)
		}
	}
}

// TestMakeMirror copies from mem_etcd to etcd and back to another mem_etcd.
func TestMakeMirror(t *testing.T) {
	ours := &ctl{t, "mem_etcd", startMemEtcd(t, "--wal-mode", "none"), nil}
	etcd := &ctl{t, "etcd", startEtcd(t), nil}
	back := &ctl{t, "mirror", startMemEtcd(t, "--wal-mode", "none"), nil}
	for i := range 50 {
		ours.run("", "put", fmt.Sprintf("m/%02d", i), "before")
	}
	ours.start("make-mirror", "--prefix", "m/", etcd.server.address)
	etcd.start("make-mirror", "--prefix", "m/", "--dest-prefix", "n/", back.server.address)
	count := func(prefix string, c *ctl) int {
		return strings.Count(c.run("", "get", "--prefix", prefix, "--keys-only"), prefix)
	}
	waitFor(t, "the mirror", func() bool { return count("m/", etcd) == 50 && count("n/", back) == 50 })
	ours.run("", "put", "m/new", "after")
	ours.run("", "del", "m/00")
	waitFor(t, "changes in the mirror", func() bool {
		return strings.Contains(back.run("", "get", "n/new"), "after") && count("n/", back) == 50
	})
}
