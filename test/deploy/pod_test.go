package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	// patience bounds the wait for anything. A machine without other work needs seconds.
	patience = 5 * time.Minute
	// podUser is the user and the group of all pods of the chart.
	podUser = 65532
	// accountDir is where programs look for the credentials of their service account.
	accountDir = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// host runs the containers of pods as processes, because the nodes of the cluster are simulated. A process has the
// command, the environment, the volumes, the user and the read-only root directory that its pod says.
type host struct {
	client kubernetes.Interface
	// server is host:port of the API server, and ca the file with its CA.
	server, ca string
	bin, dir   string
	// hosts has the lines of /etc/hosts, which stand for the names of Services and pods.
	hosts []string
	// ips are the addresses of pods, by their first name, and count is their number.
	ips   map[string]string
	count int
}

// container is the process of a container.
type container struct {
	pod     *corev1.Pod
	ip, log string
	process *exec.Cmd
	exited  chan struct{}
}

// needNamespaces skips the test if this machine cannot run containers in this way.
func needNamespaces(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: containers run in mount namespaces of their own, as other users")
	}
	if out, err := exec.Command("unshare", "--mount", "true").CombinedOutput(); err != nil {
		t.Skipf("this machine has no mount namespaces: %v %s", err, out)
	}
}

// newHost returns a host whose pods use an API server. Its files are removed with the test.
func newHost(t *testing.T, client kubernetes.Interface, server, ca, bin string) *host {
	t.Helper()
	return &host{client: client, server: server, ca: ca, bin: bin, dir: t.TempDir(), hosts: []string{"127.0.0.1 localhost"}, ips: map[string]string{}}
}

// address returns the loopback address of a pod with the names under which others reach it. A pod without names gets a new
// one.
func (h *host) address(names ...string) string {
	if len(names) > 0 && h.ips[names[0]] != "" {
		return h.ips[names[0]]
	}
	h.count++
	// Addresses of other tests on this machine differ.
	ip := fmt.Sprintf("127.%d.%d.%d", 1+os.Getpid()%250, 1+os.Getpid()/250%250, h.count)
	if len(names) > 0 {
		h.ips[names[0]] = ip
		h.hosts = append(h.hosts, ip+" "+strings.Join(names, " "))
	}
	return ip
}

// podOf returns a pod with the template of a workload.
func podOf(name string, template corev1.PodTemplateSpec) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Name, pod.Namespace = name, namespace
	return pod
}

// start starts the only container of a pod. It ends with the test, and its log is shown if the test fails.
func (h *host) start(t *testing.T, pod *corev1.Pod, ip string) *container {
	t.Helper()
	c := &container{pod: pod, ip: ip, log: filepath.Join(h.dir, pod.Name+".log"), exited: make(chan struct{})}
	root := filepath.Join(h.dir, "roots", pod.Name)
	must(t, os.RemoveAll(root))
	spec := pod.Spec.Containers[0]
	program, err := filepath.EvalSymlinks(filepath.Join(h.bin, spec.Command[0]))
	must(t, err)
	j := jail{root: root, hosts: h.hosts, mounts: append(h.volumes(t, pod), [2]string{program, "/programs/" + spec.Command[0]}), user: podUser, readOnly: true}
	c.process = j.command(t, c.command())
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(t, err)
	defer log.Close()
	c.process.Stdout, c.process.Stderr = log, log
	c.process.Env = h.environment(pod, ip)
	must(t, c.process.Start())
	go func() {
		_ = c.process.Wait()
		close(c.exited)
	}()
	t.Cleanup(func() {
		c.stop()
		if text, err := os.ReadFile(c.log); err == nil && t.Failed() {
			t.Logf("end of the log of %s:\n%s", pod.Name, text[max(0, len(text)-3000):])
		}
	})
	return c
}

// command returns the command of the container, with its variables.
func (c *container) command() []string {
	spec := c.pod.Spec.Containers[0]
	command := append([]string{"/programs/" + spec.Command[0]}, spec.Command[1:]...)
	for _, arg := range spec.Args {
		for _, variable := range spec.Env {
			arg = strings.ReplaceAll(arg, "$("+variable.Name+")", valueOf(c.pod, c.ip, variable))
		}
		command = append(command, arg)
	}
	return command
}

// environment returns the environment of the container, and where the API server is.
func (h *host) environment(pod *corev1.Pod, ip string) []string {
	host, port, _ := strings.Cut(h.server, ":")
	environment := []string{"PATH=/programs:/usr/bin:/usr/sbin", "KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
	for _, variable := range pod.Spec.Containers[0].Env {
		environment = append(environment, variable.Name+"="+valueOf(pod, ip, variable))
	}
	return environment
}

func valueOf(pod *corev1.Pod, ip string, variable corev1.EnvVar) string {
	if variable.ValueFrom == nil {
		return variable.Value
	}
	switch variable.ValueFrom.FieldRef.FieldPath {
	case "metadata.name":
		return pod.Name
	case "status.podIP":
		return ip
	}
	panic("the field " + variable.ValueFrom.FieldRef.FieldPath + " is not known to this test")
}

// volumes writes the volumes of a pod, and returns what is mounted where.
func (h *host) volumes(t *testing.T, pod *corev1.Pod) (mounts [][2]string) {
	t.Helper()
	base := filepath.Join(h.dir, "volumes", pod.Name)
	directories := map[string]string{}
	for _, volume := range pod.Spec.Volumes {
		directory := filepath.Join(base, volume.Name)
		directories[volume.Name] = directory
		switch {
		case volume.Secret != nil:
			h.writeSecret(t, directory, volume.Secret.SecretName, nil)
		case volume.ConfigMap != nil:
			config, err := h.client.CoreV1().ConfigMaps(pod.Namespace).Get(t.Context(), volume.ConfigMap.Name, metav1.GetOptions{})
			must(t, err)
			for key, text := range config.Data {
				writeFile(t, directory, key, []byte(text))
			}
		case volume.Projected != nil:
			for _, source := range volume.Projected.Sources {
				h.writeSecret(t, directory, source.Secret.Name, source.Secret.Items)
			}
		case volume.EmptyDir != nil:
			must(t, os.MkdirAll(directory, 0o755))
			must(t, os.Chown(directory, podUser, podUser))
		default:
			t.Fatalf("the volume %s of %s has a kind that this test does not know", volume.Name, pod.Name)
		}
	}
	for _, mount := range pod.Spec.Containers[0].VolumeMounts {
		if directories[mount.Name] == "" {
			// A claim of a StatefulSet: its content stays when the pod is replaced.
			directories[mount.Name] = filepath.Join(h.dir, "claims", pod.Name, mount.Name)
			must(t, os.MkdirAll(directories[mount.Name], 0o755))
			must(t, os.Chown(directories[mount.Name], podUser, podUser))
		}
		mounts = append(mounts, [2]string{directories[mount.Name], mount.MountPath})
	}
	if token := pod.Spec.AutomountServiceAccountToken; token != nil && *token {
		mounts = append(mounts, [2]string{h.account(t, pod, base), accountDir})
	}
	return mounts
}

// writeSecret writes the content of a Secret, or only some items of it.
func (h *host) writeSecret(t *testing.T, directory, name string, items []corev1.KeyToPath) {
	t.Helper()
	secret, err := h.client.CoreV1().Secrets(namespace).Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	for key, data := range secret.Data {
		path := key
		for _, item := range items {
			path = ""
			if item.Key == key {
				path = item.Path
				break
			}
		}
		if path != "" {
			writeFile(t, directory, path, data)
		}
	}
}

// writeFile writes a file that the group of the pods may read.
func writeFile(t *testing.T, directory, name string, data []byte) {
	t.Helper()
	must(t, os.MkdirAll(directory, 0o755))
	path := filepath.Join(directory, name)
	must(t, os.WriteFile(path, data, 0o440))
	must(t, os.Chown(path, 0, podUser))
}

// account writes a token of the pod's service account, and returns the directory.
func (h *host) account(t *testing.T, pod *corev1.Pod, base string) string {
	t.Helper()
	seconds := int64(24 * time.Hour / time.Second)
	token, err := h.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(t.Context(), pod.Spec.ServiceAccountName,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	must(t, err)
	ca, err := os.ReadFile(h.ca)
	must(t, err)
	directory := filepath.Join(base, "account")
	writeFile(t, directory, "token", []byte(token.Status.Token))
	writeFile(t, directory, "ca.crt", ca)
	writeFile(t, directory, "namespace", []byte(pod.Namespace))
	return directory
}

// stop ends the process as kubelet does, and kills it if it does not end.
func (c *container) stop() {
	_ = c.process.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.exited:
	case <-time.After(time.Minute):
		_ = c.process.Process.Kill()
		<-c.exited
	}
}

// awaitSuccess waits until the process has ended with exit code 0.
func (c *container) awaitSuccess(t *testing.T) {
	t.Helper()
	select {
	case <-c.exited:
	case <-time.After(patience):
		t.Fatalf("%s has not ended within %v", c.pod.Name, patience)
	}
	if code := c.process.ProcessState.ExitCode(); code != 0 {
		text, _ := os.ReadFile(c.log)
		t.Fatalf("%s ended with exit code %d:\n%s", c.pod.Name, code, text)
	}
}

// awaitReady waits until the readiness probe of the container succeeds.
func (c *container) awaitReady(t *testing.T) {
	t.Helper()
	probe := c.pod.Spec.Containers[0].ReadinessProbe.HTTPGet
	testcluster.Eventually(t, patience, c.pod.Name+" is ready", func() bool {
		select {
		case <-c.exited:
			text, _ := os.ReadFile(c.log)
			t.Fatalf("%s has ended:\n%s", c.pod.Name, text)
		default:
		}
		_, err := c.get(probe.Path, probe.Port.String(), strings.ToLower(string(probe.Scheme)), "")
		return err == nil
	})
}
