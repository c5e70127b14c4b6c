package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

func TestLint(t *testing.T) {
	run(t, nil, "helm", append([]string{"lint", "--strict", chartDir}, set(combination(1<<len(parts)-1)...)...)...)
}

// rendered returns what the chart renders for every combination of parts. It is rendered once.
func rendered(t *testing.T) []string {
	t.Helper()
	renderOnce.Do(func() {
		texts, errs := make([]string, 1<<len(parts)), make([]error, 1<<len(parts))
		var group sync.WaitGroup
		slots := make(chan struct{}, runtime.NumCPU())
		for mask := range texts {
			slots <- struct{}{}
			group.Go(func() {
				defer func() { <-slots }()
				texts[mask], errs[mask] = tryTemplate(t, set(combination(mask)...)...)
			})
		}
		group.Wait()
		must(t, errors.Join(errs...))
		renderings = texts
	})
	if renderings == nil {
		t.Fatal("the chart was not rendered")
	}
	return renderings
}

var (
	renderOnce sync.Once
	renderings []string
)

// TestTemplate checks every combination of parts: a part renders objects if and only if it is switched on, and no two
// objects have one name.
func TestTemplate(t *testing.T) {
	components := []string{"mem-etcd", "dist-scheduler", "kube-gateway", "etcd-proxy", "warm-controller-manager", "dashboards"}
	for mask, text := range rendered(t) {
		found, names := map[string]bool{}, map[string]bool{}
		for _, object := range objects(t, text) {
			found[object.GetLabels()["app.kubernetes.io/name"]] = true
			name := fmt.Sprint(object.GetKind(), " ", object.GetNamespace(), "/", object.GetName())
			if names[name] {
				t.Errorf("%s is rendered twice with %q", name, combination(mask))
			}
			names[name] = true
		}
		for i, component := range components {
			if on := mask&(1<<i) != 0; on != found[component] {
				t.Errorf("objects of %s: %v, want %v with %q", component, found[component], on, combination(mask))
			}
		}
	}
}

// workloads calls a function with each object that has a pod template.
func workloads(t *testing.T, text string, use func(object *unstructured.Unstructured, pod corev1.PodTemplateSpec)) {
	t.Helper()
	for _, object := range objects(t, text) {
		path := []string{"spec", "template"}
		if object.GetKind() == "CronJob" {
			path = []string{"spec", "jobTemplate", "spec", "template"}
		}
		fields, found, err := unstructured.NestedMap(object.Object, path...)
		must(t, err)
		if !found {
			continue
		}
		var pod corev1.PodTemplateSpec
		must(t, k8sruntime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(fields, &pod, true))
		use(object, pod)
	}
}

var flagInHelp = regexp.MustCompile(`(?m)^ +(?:-[A-Za-z], )?(--[a-z][a-z0-9-]*)`)

// TestFlags compares the flags of all containers with the help of their programs.
func TestFlags(t *testing.T) {
	known := map[string]map[string]bool{}
	used := map[string]map[string]bool{}
	for _, text := range rendered(t) {
		workloads(t, text, func(object *unstructured.Unstructured, pod corev1.PodTemplateSpec) {
			for _, container := range pod.Spec.Containers {
				program := container.Command[0]
				if known[program] == nil {
					known[program], used[program] = helpFlags(t, program, container.Args), map[string]bool{}
				}
				for _, arg := range container.Args {
					if name, _, _ := strings.Cut(arg, "="); strings.HasPrefix(name, "-") {
						used[program][name] = true
					}
				}
			}
		})
	}
	for program, flags := range used {
		for flag := range flags {
			if !known[program][flag] {
				t.Errorf("%s has no flag %s", program, flag)
			}
		}
		t.Logf("%s: %d flags", program, len(flags))
	}
	if programs := len(used); programs != 6 {
		t.Errorf("flags of %d programs were compared, want 6: %v", programs, slices.Collect(maps.Keys(used)))
	}
}

// helpFlags returns the flags in the help of a program, or of the subcommand with which its arguments begin.
func helpFlags(t *testing.T, program string, args []string) map[string]bool {
	t.Helper()
	var command []string
	for _, arg := range args {
		if strings.HasPrefix(arg, "-") || strings.Contains(arg, "/") {
			break
		}
		command = append(command, arg)
	}
	flags := map[string]bool{}
	for _, match := range flagInHelp.FindAllStringSubmatch(run(t, nil, program, append(command, "--help")...), -1) {
		flags[match[1]] = true
	}
	if len(flags) < 2 {
		t.Fatalf("the help of %s %q names %d flags", program, command, len(flags))
	}
	return flags
}

// TestConfiguration checks the configuration files in the ConfigMaps with the programs that read them.
func TestConfiguration(t *testing.T) {
	checked := map[string]int{}
	for mask, text := range rendered(t) {
		for _, object := range objects(t, text) {
			data, _, _ := unstructured.NestedStringMap(object.Object, "data")
			switch component := object.GetLabels()["app.kubernetes.io/name"]; {
			case object.GetKind() != "ConfigMap":
			case component == "dist-scheduler" && checked[component] < len(variants):
				checked[component]++
				file := filepath.Join(t.TempDir(), "config.yaml")
				// The process of another scheduler is not started: it only writes its configuration.
				must(t, os.WriteFile(file, []byte(data["config.yaml"]), 0o600))
				written := filepath.Join(t.TempDir(), "written.yaml")
				run(t, nil, "dist-scheduler", "--config", file, "--write-config-to", written, "--master", "http://127.0.0.1:1", "--secure-port", "0")
			case component == "kube-gateway":
				checked[component]++
				var config map[string]any
				must(t, yaml.UnmarshalStrict([]byte(data["gateway.yaml"]), &config))
				nodePath, _ := config["nodePath"].(map[string]any)
				// The store is that of the chart, with its certificate.
				if _, hasStore := nodePath["store"]; hasStore != (mask&1 != 0 && strings.Contains(fmt.Sprint(combination(mask)), "nodePath=true")) {
					t.Errorf("nodePath.store: %v with %q", hasStore, combination(mask))
				}
			}
		}
	}
	if checked["dist-scheduler"] == 0 || checked["kube-gateway"] == 0 {
		t.Errorf("checked configurations: %v", checked)
	}
}

// TestNodePathPermissions checks that kube-gateway may read only what its configuration needs.
func TestNodePathPermissions(t *testing.T) {
	base := set("kubeGateway.enabled=true", "kubeGateway.apiServers={10.0.0.1:6443}")
	roles := func(values ...string) (names []string) {
		for _, object := range objects(t, template(t, append(base, set(values...)...)...)) {
			if strings.HasSuffix(object.GetKind(), "Role") {
				names = append(names, strings.TrimPrefix(object.GetName(), "system:kube-gateway:"))
			}
		}
		slices.Sort(names)
		return names
	}
	const on = "kubeGateway.config.nodePath.watches.mode=on"
	for _, c := range []struct{ values, want []string }{
		{nil, nil},
		{[]string{on}, nil},
		{[]string{"kubeGateway.nodePath=true"}, []string{"node-path", "storage-probe"}},
		{[]string{"kubeGateway.nodePath=true", "kubeGateway.config.nodePath.watches.references=true"}, []string{"node-path", "storage-probe"}},
		{[]string{"kubeGateway.nodePath=true", on}, []string{"node-path", "storage-probe", "watches"}},
		{
			[]string{"kubeGateway.nodePath=true", on, "kubeGateway.config.nodePath.watches.references=true"},
			[]string{"node-path", "references", "storage-probe", "watches"},
		},
	} {
		if got := roles(c.values...); !slices.Equal(got, c.want) {
			t.Errorf("roles with %q are %q, want %q", c.values, got, c.want)
		}
	}
}

// TestSchemaOfValues checks that wrong values are refused with the name of the value.
func TestSchemaOfValues(t *testing.T) {
	for _, value := range []string{
		"memEtcd.members=2", "memEtcd.enabled=maybe", "memEtcd.replicationLog=never", "memEtcd.unknown=1", "unknown=1", "certificates.method=none",
		"distScheduler.replicas=0", "distScheduler.leaderElection.leaseDuration=10", "kubeGateway.enabled=true", "kubeGateway.apiServers={host}",
		"etcdProxy.endpoints=host", "etcdProxy.record.values=all", "memEtcd.resources.requests.cpu=much", "memEtcd.extraArgs={data-dir}",
		"memEtcd.walModePrefixes={/registry/leases/}", "bindAddress=",
	} {
		_, err := tryRun(t, nil, "helm", append([]string{"template", release, chartDir, "--kube-version", "1.37.1"}, set(value)...)...)
		name, _, _ := strings.Cut(value, "=")
		last := name[strings.LastIndex(name, ".")+1:]
		if name == "kubeGateway.enabled" {
			last = "apiServers"
		}
		if err == nil || !strings.Contains(err.Error(), last) {
			t.Errorf("--set %s: %v; want an error that names %s", value, err, last)
		}
	}
	// Every value has a schema, and every default is accepted (TestLint).
	var values, schema map[string]any
	read(t, filepath.Join(chartDir, "values.yaml"), &values)
	read(t, filepath.Join(chartDir, "values.schema.json"), &schema)
	compareWithSchema(t, "", values, schema["properties"].(map[string]any))
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	must(t, yaml.Unmarshal(text, into))
}

func compareWithSchema(t *testing.T, path string, values, properties map[string]any) {
	t.Helper()
	for name, schema := range properties {
		value, found := values[name]
		if !found && path+name != "global" {
			t.Errorf("values.yaml has no %s%s", path, name)
		}
		inner, isObject := value.(map[string]any)
		if fields, ok := schema.(map[string]any)["properties"].(map[string]any); ok && isObject {
			compareWithSchema(t, path+name+".", inner, fields)
		}
	}
}

// TestManifests validates everything that is rendered with the schemas of Kubernetes and of cert-manager.
func TestManifests(t *testing.T) {
	directory := t.TempDir()
	writeSchemas(t, directory)
	writeCertManagerSchemas(t, directory)
	var all strings.Builder
	for _, text := range rendered(t) {
		all.WriteString(text + "\n---\n")
	}
	args := []string{"-strict", "-summary", "-output", "json",
		"-schema-location", directory + "/{{.ResourceKind}}{{.KindSuffix}}.json"}
	out := run(t, []byte(all.String()), "kubeconform", append(args, "-")...)
	var result struct {
		Summary struct{ Valid, Invalid, Errors, Skipped int }
	}
	must(t, json.Unmarshal([]byte(out), &result))
	ofCertManager := strings.Count(all.String(), "\napiVersion: cert-manager.io/v1\n")
	t.Logf("valid %d, of them %d of cert-manager", result.Summary.Valid, ofCertManager)
	if result.Summary.Valid < 500 || result.Summary.Skipped > 0 || ofCertManager < 20 {
		t.Errorf("summary %+v, %d of cert-manager; want at least 500 valid objects, and 20 of cert-manager", result.Summary, ofCertManager)
	}
	for _, broken := range []string{
		"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: text}]}\n",
		"apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: a}\nspec: {serviceName: a, unknown: 1, selector: {}, template: {}}\n",
		"apiVersion: cert-manager.io/v1\nkind: Certificate\nmetadata: {name: a}\nspec: {secretName: a, issuerRef: {name: a}, usages: [everything]}\n",
	} {
		if _, err := tryRun(t, []byte(broken), "kubeconform", append(args, "-")...); err == nil {
			t.Errorf("kubeconform accepts\n%s", broken)
		}
	}
}

// TestSizes compares the files in sizes/ and the defaults with the plans of these clusters. SIZES_UPDATE=true writes them.
func TestSizes(t *testing.T) {
	for _, nodes := range []int{5000, 100000, 1000000} {
		want := planned(t, nodes)
		path := filepath.Join(chartDir, "sizes", fmt.Sprintf("%d.yaml", nodes))
		if os.Getenv("SIZES_UPDATE") == "true" {
			must(t, os.WriteFile(path, []byte(want), 0o644))
		}
		text, err := os.ReadFile(path)
		must(t, err)
		if string(text) != want {
			t.Errorf("%s differs from the plan; run SIZES_UPDATE=true go test -run TestSizes ./test/deploy", path)
		}
	}
	plain := template(t, set(combination(1<<len(parts)-1)...)...)
	sized := template(t, append(set(combination(1<<len(parts)-1)...), "--values", filepath.Join(chartDir, "sizes", "5000.yaml"))...)
	requests := func(text string) (all []string) {
		workloads(t, text, func(object *unstructured.Unstructured, pod corev1.PodTemplateSpec) {
			requests := pod.Spec.Containers[0].Resources.Requests
			all = append(all, object.GetName()+" "+requests.Cpu().String()+" "+requests.Memory().String())
		})
		return all
	}
	if !slices.Equal(requests(plain), requests(sized)) {
		t.Errorf("the defaults are %q, those of sizes/5000.yaml %q", requests(plain), requests(sized))
	}
}

// planned returns the content of the file in sizes/ for a cluster. A part uses at most the share of its requests that
// the plan allows (--busy). A gateway more than the plan needs is there, because one may fail.
func planned(t *testing.T, nodes int) string {
	t.Helper()
	flags := []string{"plan", "--nodes", fmt.Sprint(nodes), "--gateway"}
	if nodes > 400_000 {
		flags = append(flags, "--lease-cache=false")
	}
	type needs struct {
		Cores     float64
		MemoryGiB float64 `json:"memoryGiB"`
		Snapshot  float64 `json:"snapshotGiB"`
		Count     int
		Replicas  int
	}
	var plan struct {
		Machines struct{ Busy float64 }
		Needs    struct{ Store, Gateways, Scheduler needs }
	}
	must(t, json.Unmarshal([]byte(run(t, nil, "k1m", append(flags, "-o", "json")...)), &plan))
	requests := func(n needs, processes int) string {
		cores := n.Cores / plan.Machines.Busy / float64(processes)
		memory := n.MemoryGiB / plan.Machines.Busy / float64(processes)
		return fmt.Sprintf("requests: {cpu: %dm, memory: %dMi}", int(max(100, math.Ceil(1000*cores))), int(math.Ceil(1024*memory)))
	}
	store, gateways, scheduler := plan.Needs.Store, plan.Needs.Gateways, plan.Needs.Scheduler
	// Two snapshots, one that is being written, and the log after the older one.
	disk := max(8, math.Ceil(2+6*store.Snapshot))
	var b strings.Builder
	fmt.Fprintf(&b, "# Of `k1m %s`, with a share of %g that is used.\n", strings.Join(flags, " "), plan.Machines.Busy)
	fmt.Fprintf(&b, "memEtcd:\n  storage: {size: %dGi}\n  resources:\n    %s\n", int(disk), requests(store, 1))
	fmt.Fprintf(&b, "distScheduler:\n  replicas: %d\n  shareNodes: %t\n  resources:\n    %s\n",
		scheduler.Replicas+1, scheduler.Replicas > 1, requests(scheduler, scheduler.Replicas))
	fmt.Fprintf(&b, "kubeGateway:\n  replicas: %d\n  resources:\n    %s\n", gateways.Count+1, requests(gateways, gateways.Count))
	return b.String()
}

// TestProgramsExist checks that each image of the chart is a program of this repository.
func TestProgramsExist(t *testing.T) {
	bin := testcluster.Binaries(t, "helm")
	for _, text := range rendered(t) {
		workloads(t, text, func(object *unstructured.Unstructured, pod corev1.PodTemplateSpec) {
			for _, container := range pod.Spec.Containers {
				if _, err := exec.LookPath(filepath.Join(bin, container.Command[0])); err != nil {
					t.Fatal(err)
				}
				if !strings.Contains(container.Image, container.Command[0]+":") {
					t.Errorf("%s runs %s in the image %s", object.GetName(), container.Command[0], container.Image)
				}
			}
		})
	}
}
