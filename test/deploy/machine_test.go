package deploy

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// machine is a machine of a control plane: a network namespace, and a folder with what is in /etc/kubernetes and /var/lib.
// It stands for kubelet, too: sync starts and stops the pods whose manifests are in /etc/kubernetes/manifests.
type machine struct {
	name, ip, bin string
	dir           string
	network       int // process in its network namespace
	pods          map[string]*staticPod
}

// staticPod is a running pod of a manifest.
type staticPod struct {
	manifest string
	process  *exec.Cmd
	exited   chan struct{}
}

// newMachine returns the machine with a number from 1 on. It ends with the test. The process of the test must have a
// network of its own (package ownnetwork).
func newMachine(t *testing.T, bin string, number int) *machine {
	t.Helper()
	m := &machine{name: fmt.Sprintf("cp-%d", number), ip: fmt.Sprintf("10.99.0.%d", number), bin: bin, dir: t.TempDir(), pods: map[string]*staticPod{}}
	for _, directory := range []string{"etc/kubernetes/manifests", "var/lib"} {
		must(t, os.MkdirAll(filepath.Join(m.dir, directory), 0o755))
	}
	holder := exec.Command("unshare", "--net", "sleep", "infinity")
	must(t, holder.Start())
	m.network = holder.Process.Pid
	t.Cleanup(func() {
		for _, pod := range m.pods {
			pod.stop()
		}
		_ = holder.Process.Kill()
		_ = holder.Wait()
	})
	own, err := os.Readlink("/proc/self/ns/net")
	must(t, err)
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		// unshare has left the network of the test.
		if link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", m.network)); err == nil && link != own {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the machine has no network")
		}
	}
	sh(t, fmt.Sprintf(`ip link add machine%[1]d type veth peer name eth0 netns %[2]d
ip link set machine%[1]d master bridge up
nsenter --net=/proc/%[2]d/ns/net sh -ec 'ip link set lo up; ip address add %[3]s/24 dev eth0; ip link set eth0 up'`, number, m.network, m.ip))
	return m
}

// sh runs a shell script. It fails the test if the script does.
func sh(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// path returns where a path of the machine is.
func (m *machine) path(elements ...string) string {
	return filepath.Join(append([]string{m.dir}, elements...)...)
}

// sync starts the pods with new manifests, starts those that have ended again, and stops those without.
func (m *machine) sync(t *testing.T) {
	t.Helper()
	files, err := os.ReadDir(m.path("etc/kubernetes/manifests"))
	must(t, err)
	manifests := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(m.path("etc/kubernetes/manifests", file.Name()))
		// It may have been moved, or is not complete yet.
		if err == nil && strings.HasSuffix(string(text), "\n") {
			manifests[file.Name()] = string(text)
		}
	}
	for name, pod := range m.pods {
		if manifests[name] != pod.manifest {
			pod.stop()
			delete(m.pods, name)
			continue
		}
		select {
		case <-pod.exited:
			delete(m.pods, name)
		default:
		}
	}
	for name, manifest := range manifests {
		var pod corev1.Pod
		if m.pods[name] == nil && yaml.UnmarshalStrict([]byte(manifest), &pod) == nil && len(pod.Spec.Containers) == 1 {
			m.pods[name] = m.start(t, name, manifest, &pod)
		}
	}
}

// start starts the container of a pod as root, with its volumes.
func (m *machine) start(t *testing.T, name, manifest string, pod *corev1.Pod) *staticPod {
	t.Helper()
	container := pod.Spec.Containers[0]
	program, err := filepath.EvalSymlinks(filepath.Join(m.bin, container.Command[0]))
	must(t, err)
	j := jail{root: m.path("roots", name), network: m.network, mounts: [][2]string{{program, "/programs/" + container.Command[0]}}}
	j.hosts = []string{"127.0.0.1 localhost", m.ip + " " + m.name}
	paths := map[string]string{}
	for _, volume := range pod.Spec.Volumes {
		paths[volume.Name] = volume.HostPath.Path
	}
	for _, mount := range container.VolumeMounts {
		path := m.path(paths[mount.Name])
		if !strings.HasPrefix(paths[mount.Name], "/etc/kubernetes") && !strings.HasPrefix(paths[mount.Name], "/var/lib") {
			continue // CAs of the operating system
		}
		if _, err := os.Stat(path); err != nil {
			must(t, os.MkdirAll(path, 0o700))
		}
		j.mounts = append(j.mounts, [2]string{path, mount.MountPath})
	}
	s := &staticPod{manifest: manifest, exited: make(chan struct{})}
	s.process = j.command(t, append([]string{"/programs/" + container.Command[0]}, append(container.Command[1:], container.Args...)...))
	log, err := os.OpenFile(m.path(name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(t, err)
	defer log.Close()
	s.process.Stdout, s.process.Stderr = log, log
	s.process.Env = []string{"PATH=/programs:/usr/bin:/usr/sbin"}
	must(t, s.process.Start())
	go func() {
		_ = s.process.Wait()
		close(s.exited)
	}()
	return s
}

// stop ends the process of a pod.
func (s *staticPod) stop() {
	_ = s.process.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.exited:
	case <-time.After(30 * time.Second):
		_ = s.process.Process.Kill()
		<-s.exited
	}
}

// run runs a script of bash on the machine, with the programs of this repository, in a folder of the repository. Pods
// start and stop meanwhile.
func (m *machine) run(t *testing.T, folder, script string) {
	t.Helper()
	folder, err := filepath.Abs(folder)
	must(t, err)
	j := jail{root: m.path("roots", "shell"), network: m.network, mounts: [][2]string{
		{folder, "/work"}, {m.path("etc/kubernetes"), "/etc/kubernetes"}, {m.path("var/lib"), "/var/lib"},
	}}
	for _, program := range []string{"k1m", "mem_etcd", "etcd", "etcdctl", "etcdutl", "kubeadm"} {
		path, err := filepath.EvalSymlinks(filepath.Join(m.bin, program))
		must(t, err)
		j.mounts = append(j.mounts, [2]string{path, "/programs/" + program})
	}
	j.hosts = []string{"127.0.0.1 localhost"}
	cmd := j.command(t, []string{"/usr/bin/bash", "-c", "cd /work\nset -euxo pipefail\n" + script})
	cmd.Env = []string{
		"PATH=/programs:/usr/bin:/usr/sbin", "NODE_NAME=" + m.name, "NODE_IP=" + m.ip, "IMAGE_PREFIX=registry.example/k8s-1m", "VERSION=1", "HOME=/tmp",
	}
	output := m.path("shell.log")
	log, err := os.Create(output)
	must(t, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	must(t, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		m.sync(t)
		select {
		case err := <-done:
			if err != nil {
				m.fail(t, "the script: %v", err)
			}
			return
		default:
		}
		if time.Now().After(deadline) {
			_ = cmd.Process.Kill()
			m.fail(t, "the script has not ended within %v", patience)
		}
	}
}

// await waits until a condition is true. Pods start and stop meanwhile.
func (m *machine) await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(100 * time.Millisecond) {
		m.sync(t)
		if time.Now().After(deadline) {
			m.fail(t, "not within %v: %s", patience, what)
		}
	}
}

// listens reports whether a process of the machine listens on a port.
func (m *machine) listens(port string) bool {
	connection, err := net.DialTimeout("tcp", net.JoinHostPort(m.ip, port), time.Second)
	if err == nil {
		_ = connection.Close()
	}
	return err == nil
}

// fail ends the test with the logs of the machine.
func (m *machine) fail(t *testing.T, format string, args ...any) {
	t.Helper()
	logs, _ := filepath.Glob(m.path("*.log"))
	for _, log := range logs {
		text, _ := os.ReadFile(log)
		t.Logf("end of %s of %s:\n%s", filepath.Base(log), m.name, text[max(0, len(text)-3000):])
	}
	t.Fatalf(format, args...)
}

func quantity(text string) *resource.Quantity {
	q := resource.MustParse(text)
	return &q
}
