// Package operations runs the commands of docs/operations.md.
//
//	K1M_BIN  directory of the binaries (default ../../bin)
package operations

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

// patience bounds all commands of the page together. A machine without other work needs a minute.
const patience = 20 * time.Minute

// section is a part of the page with its commands.
type section struct{ heading, commands string }

// sections returns the parts of a page that have blocks of shell commands.
func sections(page string) (all []section) {
	inBlock := false
	for line := range strings.Lines(page) {
		switch {
		case inBlock && strings.TrimSpace(line) == "```":
			inBlock = false
		case inBlock:
			all[len(all)-1].commands += line
		case strings.HasPrefix(line, "## "):
			all = append(all, section{heading: strings.TrimSpace(line[3:])})
		case strings.TrimSpace(line) == "```sh":
			inBlock = true
		}
	}
	kept := all[:0]
	for _, s := range all {
		if s.commands != "" {
			kept = append(kept, s)
		}
	}
	return kept
}

// done begins the line that a script prints after the commands of a section.
const done = "SECTION DONE: "

func TestPage(t *testing.T) {
	bin := testcluster.Binaries(t, "mem_etcd", "etcd", "etcdctl", "etcdutl", "k1m", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	all := sections(string(page))
	if len(all) < 8 {
		t.Fatalf("the page has %d sections with commands: %v", len(all), all)
	}
	// A command that fails ends the script, also in a pipe. Each command is printed before it runs.
	script := "set -euxo pipefail\n"
	for _, s := range all {
		script += s.commands + fmt.Sprintf("echo '%s%s'\n", done, s.heading)
	}
	out := runScript(t, bin, script)
	for _, s := range all {
		t.Run(s.heading, func(t *testing.T) {
			if !strings.Contains(out, "\n"+done+s.heading+"\n") {
				t.Errorf("these commands have not succeeded:\n%s\nend of the output:\n%s", s.commands, out[max(0, len(out)-4000):])
			}
		})
	}
}

// runScript runs a script of bash in an empty folder and returns its output. Its processes end with it: they have a PID
// namespace of their own, and a network, so the ports of the page are free. Without root, they are in a user namespace.
func runScript(t *testing.T, bin, script string) string {
	t.Helper()
	folder := t.TempDir()
	namespaces := []string{"--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"}
	if os.Getuid() != 0 {
		namespaces = append([]string{"--user", "--map-root-user"}, namespaces...)
	}
	if out, err := exec.Command("unshare", append(namespaces, "true")...).CombinedOutput(); err != nil {
		t.Skipf("this machine has no namespaces for the ports of the page: %v %s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	output := filepath.Join(folder, "output")
	file, err := os.Create(output)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	home := filepath.Join(folder, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "unshare", append(namespaces, "bash", "-c", "ip link set lo up\n"+script)...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "K1M_HOME="+home)
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Run(); err != nil {
		t.Logf("the script: %v", err)
	}
	text, err := os.ReadFile(output)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestSections checks that the blocks of a page are found, and only those of the shell.
func TestSections(t *testing.T) {
	page := "# Page\n## One\ntext\n```sh\na\n```\n```yaml\nb\n```\n```sh\nc\n```\n## Two\n## Three\n```sh\nd\n```\n"
	got := sections(page)
	want := []section{{"One", "a\nc\n"}, {"Three", "d\n"}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("sections returned %q, want %q", got, want)
	}
}
