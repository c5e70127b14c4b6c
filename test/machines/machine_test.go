package machines

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// patience bounds every wait of a test. Machines share the cores of this one.
const patience = 10 * time.Minute

// machine is a machine of a cloud: namespaces with a systemd and a cloud-init of their own.
type machine struct {
	name, address string
	// root is its root directory, as the machine of the test sees it.
	root string
	// init is the process of its systemd.
	init int
}

// boot starts a machine with user data. It ends with the test, whose process must have its own network. The root directory
// is a layer above base.
func boot(t *testing.T, base, name, address string, userData []byte) *machine {
	t.Helper()
	dir := t.TempDir()
	m := &machine{name: name, address: address, root: filepath.Join(dir, "root")}
	for _, folder := range []string{"upper", "work", "root", "containerd", "kubelet"} {
		must(t, os.Mkdir(filepath.Join(dir, folder), 0o755))
	}
	sh(t, fmt.Sprintf("mount -t overlay overlay -o lowerdir=%[1]s,upperdir=%[2]s/upper,workdir=%[2]s/work %[2]s/root", base, dir))
	// Layers of containers cannot be above a layer.
	for _, folder := range []string{"containerd", "kubelet"} {
		must(t, os.MkdirAll(m.path("var/lib", folder), 0o755))
		sh(t, fmt.Sprintf("mount --bind %s/%s %s", dir, folder, m.path("var/lib", folder)))
	}
	t.Cleanup(func() { _ = exec.Command("umount", "--recursive", "--lazy", m.root).Run() })
	m.seed(t, userData)
	network := m.connect(t)
	// The folder of the test has a name that no other run has.
	group := "k8s-1m-" + filepath.Base(filepath.Dir(dir)) + "-" + name
	log, err := os.Create(filepath.Join(dir, "console"))
	must(t, err)
	defer log.Close()
	cmd := exec.Command("nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", network), "./boot.sh", m.root, name, group)
	cmd.Stdout, cmd.Stderr = log, log
	must(t, cmd.Start())
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			m.logs(t, log.Name())
		}
		_ = cmd.Process.Kill()
		<-exited
		removeGroups(group)
	})
	m.await(t, "systemd has started", func() bool {
		select {
		case <-exited:
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("%s has not booted: %s", name, text)
		default:
		}
		m.init = child(cmd.Process.Pid)
		out, _ := m.try("systemctl", "is-system-running")
		return strings.Contains(out, "running") || strings.Contains(out, "degraded") || strings.Contains(out, "starting")
	})
	return m
}

// seed writes what cloud-init reads: the data source of a machine without a cloud.
func (m *machine) seed(t *testing.T, userData []byte) {
	t.Helper()
	folder := m.path("var/lib/cloud/seed/nocloud")
	must(t, os.MkdirAll(folder, 0o755))
	metaData, err := yaml.Marshal(map[string]string{"instance-id": m.name, "local-hostname": m.name})
	must(t, err)
	for file, content := range map[string][]byte{
		"user-data": userData, "meta-data": metaData, "network-config": []byte("network: {config: disabled}\n"),
	} {
		must(t, os.WriteFile(filepath.Join(folder, file), content, 0o600))
	}
	must(t, os.WriteFile(m.path("etc/hosts"), []byte("127.0.0.1 localhost\n"+m.address+" "+m.name+"\n"), 0o644))
	must(t, os.WriteFile(m.path("etc/machine-id"), nil, 0o444))
	// Operators choose the network of pods.
	must(t, os.MkdirAll(m.path("etc/cni/net.d"), 0o755))
	must(t, os.WriteFile(m.path("etc/cni/net.d/10-pods.conflist"), []byte(podNetwork), 0o644))
}

// connect makes the network of the machine, and returns a process in it.
func (m *machine) connect(t *testing.T) int {
	t.Helper()
	holder := exec.Command("unshare", "--net", "sleep", "infinity")
	must(t, holder.Start())
	t.Cleanup(func() {
		_ = holder.Process.Kill()
		_ = holder.Wait()
	})
	own, err := os.Readlink("/proc/self/ns/net")
	must(t, err)
	m.await(t, "unshare has left the network of the test", func() bool {
		link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", holder.Process.Pid))
		return err == nil && link != own
	})
	number := m.address[strings.LastIndex(m.address, ".")+1:]
	sh(t, fmt.Sprintf(`ip link add machine%[1]s type veth peer name eth0 netns %[2]d
ip link set machine%[1]s master bridge up
nsenter --net=/proc/%[2]d/ns/net sh -ec 'ip link set lo up; ip address add %[3]s/24 dev eth0; ip link set eth0 up; ip route add default via 10.99.0.254'`,
		number, holder.Process.Pid, m.address))
	return holder.Process.Pid
}

// path returns where a path of the machine is.
func (m *machine) path(elements ...string) string {
	return filepath.Join(append([]string{m.root}, elements...)...)
}

// command returns a command on the machine.
func (m *machine) command(ctx context.Context, args ...string) *exec.Cmd {
	enter := []string{"--target", strconv.Itoa(m.init), "--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--root", "--wd", "--"}
	cmd := exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
	return cmd
}

// try runs a command on the machine, and returns its output.
func (m *machine) try(args ...string) (string, error) {
	if m.init == 0 {
		return "", os.ErrProcessDone
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := m.command(ctx, args...).CombinedOutput()
	return string(out), err
}

// run runs a command on the machine, and fails the test if it fails.
func (m *machine) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := m.try(args...)
	if err != nil {
		t.Fatalf("%s: %s: %v\n%s", m.name, strings.Join(args, " "), err, out)
	}
	return out
}

// await waits until a condition is true.
func (m *machine) await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %s", m.name, patience, what)
		}
	}
}

// logs prints what helps to understand a failure.
func (m *machine) logs(t *testing.T, console string) {
	text, _ := os.ReadFile(console)
	t.Logf("console of %s:\n%s", m.name, tail(string(text)))
	for _, command := range [][]string{
		{"systemctl", "--no-pager", "list-units", "--failed"},
		{"journalctl", "--no-pager", "--lines", "60", "--unit", "mem_etcd", "--unit", "kube-apiserver", "--unit", "kube-controller-manager",
			"--unit", "dist-scheduler", "--unit", "kube-gateway", "--unit", "kubelet", "--unit", "containerd"},
		{"tail", "-n", "40", "/var/log/cloud-init-output.log"},
	} {
		out, _ := m.try(command...)
		t.Logf("%s: %s\n%s", m.name, strings.Join(command, " "), tail(out))
	}
}

func tail(text string) string { return text[max(0, len(text)-6000):] }

// child returns the first process that another has started, or 0.
func child(parent int) int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		_, after, found := strings.Cut(string(text), ") ")
		if fields := strings.Fields(after); err == nil && found && len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			pid, _ := strconv.Atoi(strings.Split(stat, "/")[2])
			return pid
		}
	}
	return 0
}

// removeGroups removes the groups of a machine that has ended, and those in them.
func removeGroups(name string) {
	hierarchies, _ := filepath.Glob("/sys/fs/cgroup/*/" + name)
	for _, group := range hierarchies {
		for attempt := 0; attempt < 50; attempt++ {
			_ = exec.Command("find", group, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";").Run()
			if _, err := os.Stat(group); err != nil {
				break
			}
			time.Sleep(100 * time.Millisecond) // The kernel has not removed all processes yet.
		}
	}
}

// sh runs a shell script. It fails the test if the script does.
func sh(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
