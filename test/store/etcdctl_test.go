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

// ctl runs etcdctl against one server.
type ctl struct {
	t      *testing.T
	name   string
	server *server
	// variables are values for arguments such as $LEASE.
	variables map[string]string
}

// twoCtls starts etcd and mem_etcd, and returns a ctl for each.
func twoCtls(t *testing.T) []*ctl {
	return []*ctl{
		{t, "etcd", startEtcd(t), map[string]string{}},
		{t, "mem_etcd", startMemEtcd(t, "--initial-advertise-peer-urls", "http://127.0.0.1:2380"), map[string]string{}},
	}
}

// command returns the etcdctl command with these arguments, in which variables are replaced by their values.
func (c *ctl) command(args ...string) *exec.Cmd {
	c.t.Helper()
	for i, arg := range args {
		if value, ok := c.variables[arg]; ok {
			args[i] = value
		}
	}
	cmd := exec.Command(binary(c.t, "etcdctl"), args...)
	cmd.Env = append(os.Environ(), "ETCDCTL_ENDPOINTS=http://"+c.server.address)
	return cmd
}

// run runs etcdctl and returns its output and its exit code as one text.
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

// setVariable sets a variable to the part of the output that matches the group in the regular expression.
func (c *ctl) setVariable(name, expression, output string) {
	c.t.Helper()
	found := regexp.MustCompile(expression).FindStringSubmatch(output)
	if found == nil {
		c.t.Fatalf("%s: %s does not match the output %s", c.name, expression, output)
	}
	c.variables[name] = found[1]
}

// placeholders replace the parts of the output that differ between servers.
var placeholders = []struct {
	*regexp.Regexp
	text string
}{
	{regexp.MustCompile(`https?://127\.0\.0\.1:\d+|127\.0\.0\.1:\d+`), "ADDRESS"},
	{regexp.MustCompile(`\b[0-9a-f]{12,16}\b`), "ID"},
	{regexp.MustCompile(`\b\d{12,20}\b`), "ID"},
	{regexp.MustCompile(`\d+(\.\d+)?(µs|ms|s)\b`), "TIME"},
	// The remaining TTL of the lease of 500 s: the next second may begin between the two programs.
	{regexp.MustCompile(`"ttl":(49\d|500)\b`), `"ttl":REMAINING`},
	{regexp.MustCompile(`/\S+/snapshot`), "FILE"},
	// Log lines of the client.
	{regexp.MustCompile(`(?m)^\{"level".*\n`), ""},
}

// normalized replaces the parts of an output that differ between servers.
func normalized(output string) string {
	for _, p := range placeholders {
		output = p.ReplaceAllString(output, p.text)
	}
	return output
}

// TestEtcdctlAsEtcd runs etcdctl commands with both servers and compares their outputs and exit codes.
func TestEtcdctlAsEtcd(t *testing.T) {
	ctls := twoCtls(t)
	for _, c := range ctls {
		c.setVariable("$LEASE", `lease ([0-9a-f]+) granted`, c.run("", "lease", "grant", "500"))
		c.setVariable("$GONE", `lease ([0-9a-f]+) granted`, c.run("", "lease", "grant", "500"))
		c.setVariable("$MEMBER", `^([0-9a-f]+), started`, c.run("", "member", "list"))
		c.variables["$FILE"] = filepath.Join(t.TempDir(), "snapshot")
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
		want := normalized(ctls[0].run(step.stdin, strings.Fields(step.command)...))
		got := normalized(ctls[1].run(step.stdin, strings.Fields(step.command)...))
		if want != got {
			t.Errorf("%s\netcd:\n%s\nmem_etcd:\n%s", step.command, want, got)
		}
	}
}

// TestEtcdctlStatus compares the outputs of status commands without their numbers, because sizes and Raft indexes differ
// between the servers.
func TestEtcdctlStatus(t *testing.T) {
	numbers := regexp.MustCompile(`\d+(\.\d+)?`)
	shapes := map[string]map[string]string{}
	for _, c := range twoCtls(t) {
		c.run("", "put", "a", "b")
		shapes[c.name] = map[string]string{}
		for _, command := range []string{"endpoint status -w json", "endpoint status -w fields", "member list -w json"} {
			shape := numbers.ReplaceAllString(normalized(c.run("", strings.Fields(command)...)), "N")
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

// runningCtl is an etcdctl command that runs until it is interrupted.
type runningCtl struct {
	c     *ctl
	cmd   *exec.Cmd
	stdin interface{ Write([]byte) (int, error) }
	mu    sync.Mutex
	// text is the output so far.
	text bytes.Buffer
}

func (r *runningCtl) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *runningCtl) output() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// start starts an etcdctl command. It is interrupted at the end of the test.
func (c *ctl) start(args ...string) *runningCtl {
	c.t.Helper()
	r := &runningCtl{c: c, cmd: c.command(args...)}
	r.cmd.Stdout, r.cmd.Stderr, r.cmd.WaitDelay = r, r, 5*time.Second
	stdin, err := r.cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	r.stdin = stdin
	if err := r.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(r.interrupt)
	return r
}

// interrupt sends SIGINT and waits for the command to exit. After 5 s it kills the command.
func (r *runningCtl) interrupt() {
	_ = r.cmd.Process.Signal(syscall.SIGINT)
	timer := time.AfterFunc(5*time.Second, func() { _ = r.cmd.Process.Kill() })
	defer timer.Stop()
	_ = r.cmd.Wait()
}

// writeLine writes a line to the standard input of the command.
func (r *runningCtl) writeLine(line string) {
	r.c.t.Helper()
	if _, err := fmt.Fprintln(r.stdin, line); err != nil {
		r.c.t.Fatal(err)
	}
}

// waitForOutput waits until the command has printed the text.
func (r *runningCtl) waitForOutput(text string) {
	r.c.t.Helper()
	waitFor(r.c.t, fmt.Sprintf("%q in the output of etcdctl with %s, which was at first %q", text, r.c.name, r.output()), func() bool {
		return strings.Contains(r.output(), text)
	})
}

// TestEtcdctlUntilInterrupted compares the outputs of commands that run until they are interrupted.
func TestEtcdctlUntilInterrupted(t *testing.T) {
	outputs := map[string][]string{}
	for _, c := range twoCtls(t) {
		watch := c.start("watch", "--prefix", "w", "--rev", "2", "--prev-kv")
		interactive := c.start("watch", "-i")
		interactive.writeLine("watch typed")
		elect := c.start("elect", "e", "mine")
		elect.waitForOutput("mine")
		observe := c.start("elect", "-l", "e")
		observe.waitForOutput("mine")
		c.setVariable("$LEASE", `lease ([0-9a-f]+) granted`, c.run("", "lease", "grant", "2"))
		alive := c.start("lease", "keep-alive", "$LEASE")
		alive.waitForOutput("keepalived")

		c.run("", "put", "w1", "one")
		c.run("", "put", "w2", "two", "--lease", "$LEASE")
		c.run("", "put", "w1", "three")
		c.run("", "del", "w1")
		watch.waitForOutput("DELETE")
		// Repeat the put until the interactive watch exists, which prints nothing when it is created.
		waitFor(t, "an event of the interactive watch", func() bool {
			c.run("", "put", "typed", "seen")
			return strings.Contains(interactive.output(), "seen")
		})
		interactive.writeLine("progress")
		interactive.waitForOutput("progress notify:")
		first := c.start("lock", "l")
		first.waitForOutput("l/")
		second := c.start("lock", "l", "echo", "got it")
		first.interrupt()
		second.waitForOutput("got it")
		elect.interrupt()
		watch.interrupt()
		outputs[c.name] = []string{normalized(watch.output()), normalized(elect.output())}
	}
	for i, want := range outputs["etcd"] {
		if got := outputs["mem_etcd"][i]; got != want {
			t.Errorf("etcd:\n%s\nmem_etcd:\n%s", want, got)
		}
	}
}

// TestMakeMirror mirrors keys from mem_etcd to etcd, and from there to another mem_etcd.
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
	waitFor(t, "the mirrors to contain all keys", func() bool { return count("m/", etcd) == 50 && count("n/", back) == 50 })
	ours.run("", "put", "m/new", "after")
	ours.run("", "del", "m/00")
	waitFor(t, "the changes in the second mirror", func() bool {
		return strings.Contains(back.run("", "get", "n/new"), "after") && count("n/", back) == 50
	})
}

// TestStatusOfAnEmptyStore shows the status of an empty store as a table: etcdctl divides by the size of the store.
func TestStatusOfAnEmptyStore(t *testing.T) {
	output, err := startMemEtcd(t).etcdctl("endpoint", "status", "--write-out", "table")
	if err != nil || !strings.Contains(output, "DB SIZE") {
		t.Errorf("etcdctl endpoint status: %v: %s", err, output)
	}
}
