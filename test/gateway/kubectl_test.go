package gateway

import (
	"bytes"
	"context"
	"crypto/md5"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	kubectlTimeout = 5 * time.Minute
	// tries is how often a command is sent that depends on controllers.
	tries = 60
)

// kubectl runs kubectl as the administrator, and returns its output and exit code. It caches the discovery of each
// address in the cluster's folder.
func (c *cluster) kubectl(t *testing.T, address string, env []string, input string, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), kubectlTimeout)
	defer cancel()
	args = append([]string{"--kubeconfig", c.kubeconfig, "--server", "https://" + address}, args...)
	command := exec.CommandContext(ctx, filepath.Join(c.Bin, "kubectl"), args...)
	command.Stdin = strings.NewReader(input)
	command.Env = append(append(os.Environ(), "HOME="+c.Home), env...)
	output, err := command.CombinedOutput()
	if ctx.Err() != nil {
		return fmt.Sprintf("%s\n%v", output, ctx.Err()), -1
	}
	if err != nil && command.ProcessState == nil {
		t.Fatal(err)
	}
	return string(output), command.ProcessState.ExitCode()
}

// step is a command of kubectl. In its arguments, NS is the namespace.
type step struct {
	args  string
	input string
	// settles: the command is repeated until it succeeds, because it depends on controllers.
	settles bool
}

const deployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: c, image: "nginx:1", resources: {requests: {cpu: 10m}}}]
`

const crd = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.NS.example.com}
spec:
  group: NS.example.com
  scope: Namespaced
  names: {plural: things, singular: thing, kind: Thing}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns: [{name: Size, type: integer, jsonPath: .spec.size}]
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}
`

// steps are what kubectl can do on a simulated cluster.
func steps() []step {
	do := func(args ...string) []step {
		all := make([]step, len(args))
		for i, arg := range args {
			all[i].args = arg
		}
		return all
	}
	steps := do("version", "api-versions", "api-resources --sort-by=name", "explain deployment.spec.strategy", "explain pods --recursive", "cluster-info",
		"auth whoami", "auth can-i create pods", "auth can-i --list", "get --raw /healthz", "get --raw /livez?verbose", "get nodes -o name", "describe nodes",
		"top nodes", "get none", "get pods -n none", "create namespace NS")
	steps = append(steps, step{args: "apply -n NS -f - --dry-run=server -o yaml", input: deployment}, step{args: "diff -n NS -f -", input: deployment},
		step{args: "apply -n NS -f -", input: deployment}, step{args: "apply -n NS --server-side --force-conflicts -f -", input: strings.Replace(deployment, "nginx:1", "nginx:2", 1)},
		step{args: "apply -n NS -f - --validate=strict", input: strings.Replace(deployment, "replicas: 2", "replikas: 2", 1)},
		step{args: "create -n NS -f -", input: deployment}, step{args: "create -n NS -f -", input: "{"},
		step{args: "rollout status deployment/web -n NS --timeout=4m", settles: true})
	steps = append(steps, do("wait deployment/web -n NS --for=condition=Available --timeout=4m", "get deployments -n NS -o wide", "get pods -n NS -l app=web -o name --sort-by=metadata.name",
		"get all -n NS -o name --show-kind", "get deployment web -n NS -o jsonpath={.spec.replicas}", "get deployment web -n NS -o json --show-managed-fields", "get deployment web -n NS -o yaml",
		"get pods -n NS --field-selector=status.phase=Running --chunk-size=1 -o custom-columns=P:.status.phase", "get pods -n NS --field-selector=nothing=x",
		"describe deployment web -n NS", "describe pods -n NS", "events -n NS --types=Warning", "scale deployment web -n NS --replicas=3", "rollout restart deployment/web -n NS")...)
	steps = append(steps, step{args: "rollout status deployment/web -n NS --timeout=4m", settles: true})
	steps = append(steps, do("set image deployment/web c=nginx:3 -n NS", "rollout undo deployment/web -n NS", "rollout history deployment/web -n NS", "rollout pause deployment/web -n NS",
		"rollout resume deployment/web -n NS", "set env deployment/web A=b -n NS", "set resources deployment/web --limits=cpu=1 -n NS", "autoscale deployment web --min=1 --max=3 -n NS",
		"expose deployment web --port=80 -n NS", "get service web -n NS", "label deployment web a=b -n NS", "annotate deployment web a=b -n NS", "patch deployment web -n NS -p {\"spec\":{\"replicas\":1}}",
		"patch deployment web -n NS --type=json -p [{\"op\":\"remove\",\"path\":\"/spec/none\"}]", "patch deployment web -n NS --type=merge -p {\"metadata\":{\"labels\":{\"c\":\"d\"}}}",
		"patch deployment web -n NS --subresource=scale --type=merge -p {\"spec\":{\"replicas\":2}}", "create configmap cm -n NS --from-literal=a=b", "create secret generic s -n NS --from-literal=a=b",
		"create serviceaccount sa -n NS", "create role r -n NS --verb=get --resource=pods", "create rolebinding rb -n NS --role=r --serviceaccount=NS:sa", "auth can-i get pods -n NS --as=system:serviceaccount:NS:sa",
		"get secrets -n NS --as=system:serviceaccount:NS:sa", "create quota q -n NS --hard=pods=100", "create job j -n NS --image=busybox", "create cronjob cj -n NS --image=busybox --schedule=@daily",
		"create ingress i -n NS --rule=a/b=web:80", "create poddisruptionbudget pdb -n NS --selector=app=web --min-available=1", "create priorityclass NS-high --value=5",
		"run single -n NS --image=busybox --labels=app=single", "get configmap cm -n NS -w --request-timeout=10s", "delete configmap cm -n NS", "delete configmap cm -n NS", "delete secret s -n NS --dry-run=server")...)
	steps = append(steps, step{args: "wait pod/single -n NS --for=condition=Ready --timeout=4m", settles: true}, step{args: "debug single -n NS --image=busybox -c debugger --attach=false"},
		step{args: "get pod single -n NS -o jsonpath={.spec.ephemeralContainers[0].name}"}, step{args: "replace -n NS -f - --force", input: deployment},
		step{args: "auth reconcile -n NS -f -", input: "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: r}\nrules: []\n"},
		step{args: "apply -f -", input: crd}, step{args: "wait crd/things.NS.example.com --for=condition=Established --timeout=4m", settles: true},
		step{args: "create -n NS -f -", input: "apiVersion: NS.example.com/v1\nkind: Thing\nmetadata: {name: t}\nspec: {size: 5}\n", settles: true},
		step{args: "get things.NS.example.com -n NS", settles: true}, step{args: "explain things.NS.example.com.spec", settles: true})
	return append(steps, do("apply -n NS -f - --prune", "get things.NS.example.com t -n NS -o yaml", "delete things.NS.example.com t -n NS", "cordon kwok-node-that-is-not-there", "get events -n NS -o name --limit=1",
		"delete pod single -n NS --grace-period=0 --force", "delete deployment web -n NS --cascade=foreground --wait=false", "delete crd things.NS.example.com", "delete priorityclass NS-high",
		"delete namespace NS --wait=false", "kustomize none", "completion bash", "config view", "plugin list", "options")...)
}

// unstable matches what differs between two namespaces of one cluster, or between two moments.
var unstable = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9]+|web-[a-z0-9]+(-[a-z0-9]+)?|[a-z]+-[a-z0-9]{5}\b|<none>|<unknown>|<invalid>| +|node-[a-z0-9-]+|sha[0-9]+:[0-9a-f]+|[0-9a-f-]{30,}`)

// loose are commands whose output depends on the moment. Only their exit codes are compared.
var loose = regexp.MustCompile(`^(describe|events|get events|get all|get pods|rollout|wait|get deployment|top|cluster-info|get --raw|config view|get configmap)`)

// testKubectl runs the same commands against an API server and through the gateway and compares their results.
func testKubectl(t *testing.T, c *cluster) {
	type result struct {
		output string
		code   int
	}
	run := func(address, namespace string) []result {
		var results []result
		for _, s := range steps() {
			var r result
			for try := range tries {
				args := strings.Fields(strings.ReplaceAll(s.args, "NS", namespace))
				r.output, r.code = c.kubectl(t, address, nil, strings.ReplaceAll(s.input, "NS", namespace), args...)
				if r.code == 0 || !s.settles || try == tries-1 {
					break
				}
				time.Sleep(time.Second)
			}
			r.output = strings.NewReplacer(namespace, "NS", address, "SERVER").Replace(r.output)
			results = append(results, r)
		}
		return results
	}
	var direct, through []result
	var both sync.WaitGroup
	both.Go(func() { direct = run(c.Servers[0], "nsdirect") })
	both.Go(func() { through = run(c.gateway, "nsgateway") })
	both.Wait()
	succeeded := 0
	for i, s := range steps() {
		d, g := direct[i], through[i]
		if d.code == 0 {
			succeeded++
		} else if s.settles {
			t.Errorf("kubectl %s does not succeed with an API server: %s", s.args, d.output)
		}
		same := d.code == g.code && (loose.MatchString(s.args) || unstable.ReplaceAllString(d.output, "") == unstable.ReplaceAllString(g.output, ""))
		if !same {
			t.Errorf("kubectl %s:\nan API server, exit code %d: %.1500s\nthe gateway, exit code %d: %.1500s", s.args, d.code, d.output, g.code, g.output)
		}
	}
	t.Logf("%d commands, %d succeeded", len(direct), succeeded)
}

// streams is kwok's configuration for a container that runs commands on this machine.
const streams = `apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
options: {enableDebuggingHandlers: true}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: ClusterLogs
metadata: {name: all}
spec: {logs: [{logsFile: %[1]q, follow: true}]}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: ClusterAttach
metadata: {name: all}
spec: {attaches: [{logsFile: %[1]q}]}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: ClusterExec
metadata: {name: all}
spec: {execs: [{local: {workDir: %[2]q}}]}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: ClusterPortForward
metadata: {name: all}
spec: {forwards: [{command: [cat]}]}
`

// logLines is the log of each container.
const logLines = "2026-01-02T03:04:05.000000000Z stdout F first line\n2026-01-02T03:04:06.000000000Z stdout F second line\n"

// writeStreams writes kwok's configuration and returns its path.
func (c *cluster) writeStreams(t *testing.T) string {
	t.Helper()
	path, log := filepath.Join(c.Home, "streams.yaml"), filepath.Join(c.Home, "container.log")
	must(t, os.WriteFile(log, []byte(logLines), 0o600))
	must(t, os.WriteFile(path, fmt.Appendf(nil, streams, log, c.Home), 0o600))
	return path
}

// startStreams makes kwok the kubelet of a node, and starts a pod there.
func (c *cluster) startStreams(t *testing.T) {
	t.Helper()
	var port string
	for _, component := range c.Components(t) {
		if component.Name == "kwok" {
			_, port, _ = strings.Cut(strings.TrimPrefix(component.Address, "http://"), ":")
		}
	}
	names, _ := c.kubectl(t, c.Servers[0], nil, "", "get", "nodes", "-o", "name")
	node := strings.TrimPrefix(strings.Fields(names)[0], "node/")
	patch := fmt.Sprintf(`{"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":%s}}}}`, port)
	pod := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: streams}\nspec: {nodeName: %s, containers: [{name: c, image: busybox}]}\n", node)
	for _, command := range [][]string{
		{"", "patch", "node", node, "--subresource=status", "--type=merge", "-p", patch},
		{pod, "create", "-f", "-"},
		{"", "wait", "pod/streams", "--for=condition=Ready", "--timeout=4m"},
	} {
		if output, code := c.kubectl(t, c.Servers[0], nil, command[0], command[1:]...); code != 0 {
			t.Fatalf("kubectl %v: %s", command[1:], output)
		}
	}
}

// testStreams checks exec, logs, attach, cp, debug and port-forward through the gateway, with both protocols.
func testStreams(t *testing.T, c *cluster) {
	c.startStreams(t)
	large := strings.Repeat("0123456789abcdef", 1<<16)
	must(t, os.WriteFile(filepath.Join(c.Home, "large"), []byte(large), 0o600))
	for protocol, value := range map[string]string{"WebSocket": "true", "SPDY": "false"} {
		env := []string{"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=" + value, "KUBECTL_PORT_FORWARD_WEBSOCKETS=" + value}
		run := func(input string, args ...string) (string, int) { return c.kubectl(t, c.gateway, env, input, args...) }
		t.Run(protocol, func(t *testing.T) {
			expect := func(want string, code int, input string, args ...string) {
				t.Helper()
				if output, got := run(input, args...); got != code || !strings.Contains(output, want) {
					t.Errorf("kubectl %v: exit code %d, %.500q; want %d and %.100q", args, got, output, code, want)
				}
			}
			expect("hello", 0, "", "exec", "streams", "--", "echo", "hello")
			// kwok reports the exit code of a command only in its message, and does not pass on the end of the input.
			expect("exit status 7", 1, "", "exec", "streams", "--", "sh", "-c", "exit 7")
			expect("a b", 0, "a b", "exec", "-i", "streams", "--", "head", "-c", "3")
			expect("to stderr", 0, "", "exec", "streams", "-c", "c", "--", "sh", "-c", "echo to stderr >&2")
			expect("second line", 0, "", "logs", "streams")
			expect("2026-01-02T03:04:06.000000000Z second line", 0, "", "logs", "streams", "--timestamps")
			if output, code := run(large, "exec", "-i", "streams", "--", "sh", "-c", fmt.Sprintf("head -c %d | md5sum", len(large))); code != 0 || !strings.Contains(output, md5Of(large)) {
				t.Errorf("1 MiB of input: exit code %d, %q, want %s", code, output, md5Of(large))
			}
			copied := filepath.Join(t.TempDir(), "copied")
			expect("", 0, "", "cp", "streams:large", copied)
			if text, err := os.ReadFile(copied); err != nil || string(text) != large {
				t.Errorf("kubectl cp: %d bytes, %v; want %d", len(text), err, len(large))
			}
			expect("not found", 1, "", "exec", "none", "--", "true")
			c.attached(t, env, "attach", "streams")
			c.attached(t, env, "logs", "-f", "streams")
			c.forwarded(t, env)
		})
	}
}

// attached starts a command that follows the log, and checks that it shows a line that is written then.
func (c *cluster) attached(t *testing.T, env []string, args ...string) {
	t.Helper()
	line := fmt.Sprintf("line-%d", time.Now().UnixNano())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	output := &lockedBuffer{}
	command := c.command(ctx, t, env, args...)
	command.Stdout, command.Stderr = output, output
	must(t, command.Start())
	file, err := os.OpenFile(filepath.Join(c.Home, "container.log"), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	defer file.Close()
	seen := func() bool {
		// The command may have begun after the last line.
		_, err := fmt.Fprintf(file, "%s stdout F %s\n", time.Now().UTC().Format(time.RFC3339Nano), line)
		must(t, err)
		return strings.Contains(output.String(), line)
	}
	testcluster.Eventually(t, startTimeout, fmt.Sprintf("kubectl %v shows a new line", args), seen)
	cancel()
	_ = command.Wait()
}

// forwarded forwards a port to a program that returns what it gets.
func (c *cluster) forwarded(t *testing.T, env []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	output := &lockedBuffer{}
	command := c.command(ctx, t, env, "port-forward", "pod/streams", ":80")
	command.Stdout, command.Stderr = output, output
	must(t, command.Start())
	port := regexp.MustCompile(`127\.0\.0\.1:([0-9]+) ->`)
	testcluster.Eventually(t, startTimeout, "kubectl port-forward listens", func() bool { return port.MatchString(output.String()) })
	address := "127.0.0.1:" + port.FindStringSubmatch(output.String())[1]
	// Several connections use one tunnel.
	for i := range 5 {
		text := strings.Repeat(fmt.Sprintf("connection %d ", i), 5000)
		if got := echo(t, address, text); got != text {
			t.Errorf("connection %d through a forwarded port returned %d bytes, want %d; %s", i, len(got), len(text), output)
		}
	}
	cancel()
	_ = command.Wait()
}

// command returns a command of kubectl through the gateway that runs until it is cancelled.
func (c *cluster) command(ctx context.Context, t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	args = append([]string{"--kubeconfig", c.kubeconfig, "--server", "https://" + c.gateway}, args...)
	command := exec.CommandContext(ctx, filepath.Join(c.Bin, "kubectl"), args...)
	command.Env = append(append(os.Environ(), "HOME="+c.Home), env...)
	return command
}

// lockedBuffer collects the output of a running command.
type lockedBuffer struct {
	mutex  sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(text []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.buffer.Write(text)
}

func (b *lockedBuffer) String() string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.buffer.String()
}

func md5Of(text string) string { return fmt.Sprintf("%x", md5.Sum([]byte(text))) }

// echo sends a text to an address and returns as many bytes of the answer.
func echo(t *testing.T, address, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(startTimeout)))
	go func() { _, _ = io.WriteString(conn, text) }()
	answer := make([]byte, len(text))
	n, _ := io.ReadFull(conn, answer)
	return string(answer[:n])
}
