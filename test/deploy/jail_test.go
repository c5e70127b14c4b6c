package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// jail is a root directory with the libraries of this machine, for the processes of a container. It has a mount namespace
// of its own.
type jail struct {
	root string
	// hosts are the lines of /etc/hosts.
	hosts []string
	// mounts are directories and files of this machine, and where they are in the jail.
	mounts [][2]string
	// user is the user and the group of the process; 0 is root.
	user     int
	readOnly bool
	// network is the process in whose network namespace the jail is, if any.
	network int
}

// command returns a command in the jail, which it builds.
func (j *jail) command(t *testing.T, command []string) *exec.Cmd {
	t.Helper()
	must(t, os.RemoveAll(j.root))
	for _, directory := range []string{"usr", "dev", "proc", "etc", "tmp", "programs"} {
		must(t, os.MkdirAll(filepath.Join(j.root, directory), 0o755))
	}
	for _, link := range []string{"bin", "lib", "lib64", "sbin"} {
		must(t, os.Symlink("usr/"+link, filepath.Join(j.root, link)))
	}
	must(t, os.WriteFile(filepath.Join(j.root, "etc", "hosts"), []byte(strings.Join(j.hosts, "\n")+"\n"), 0o644))
	must(t, os.WriteFile(filepath.Join(j.root, "etc", "nsswitch.conf"), []byte("hosts: files\n"), 0o644))
	args := []string{"unshare", "--mount", "sh", "-c", j.script(t, command)}
	if j.network != 0 {
		args = append([]string{"nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", j.network)}, args...)
	}
	return exec.Command(args[0], args[1:]...)
}

// script returns a shell script that mounts everything and runs a command with the root directory of the jail.
func (j *jail) script(t *testing.T, command []string) string {
	t.Helper()
	var b strings.Builder
	// The first mount makes root a mount point, which can become read-only without what is mounted in it.
	fmt.Fprintf(&b, "set -e\nmount --bind %s %s\n", quote(j.root), quote(j.root))
	for _, mount := range append([][2]string{{"/usr", "/usr"}, {"/dev", "/dev"}, {"/proc", "/proc"}}, j.mounts...) {
		target := filepath.Join(j.root, mount[1])
		info, err := os.Stat(mount[0])
		must(t, err)
		must(t, os.MkdirAll(filepath.Dir(target), 0o755))
		if info.IsDir() {
			must(t, os.MkdirAll(target, 0o755))
		} else {
			must(t, os.WriteFile(target, nil, 0o755))
		}
		fmt.Fprintf(&b, "mount --rbind %s %s\n", quote(mount[0]), quote(target))
	}
	if j.readOnly {
		fmt.Fprintf(&b, "mount -o remount,bind,ro %s\n", quote(j.root))
	}
	fmt.Fprintf(&b, "exec chroot %s /usr/bin/setpriv --pdeathsig KILL", quote(j.root))
	if j.user != 0 {
		fmt.Fprintf(&b, " --reuid %d --regid %d --clear-groups", j.user, j.user)
	}
	for _, word := range command {
		b.WriteString(" " + quote(word))
	}
	return b.String()
}

func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }
