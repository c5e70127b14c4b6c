// Package machines tests the Terraform module in deploy/terraform and the user data in deploy/cloud-init: OpenTofu renders
// it, and cloud-init and systemd execute it on machines that are namespaces. One of them is a real node, which runs the
// pods of the Helm chart.
//
//	K1M_BIN     directory of the binaries (default ../../bin), with tofu and tflint
//	MACHINES=full  also boot machines. They need root, target/machine-root (root.sh), and the packages and images of
//	            `make dist images` in DIST and IMAGES
package machines

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// terraformDir has the Terraform module, and clouds are its folders for providers.
const terraformDir = "../../deploy/terraform"

var clouds = []string{"aws", "google", "vultr"}

// tool returns the path of a program that is built for this test only, or skips the test.
func tool(t *testing.T, name string) string {
	t.Helper()
	bin := os.Getenv("K1M_BIN")
	if bin == "" {
		bin = "../../bin"
	}
	path, err := filepath.Abs(filepath.Join(bin, name))
	must(t, err)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s is not built; run `make machines`", name)
	}
	return path
}

// tofu runs OpenTofu in a folder and returns what it prints to standard output. The error has everything.
func tofu(t *testing.T, folder string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), tool(t, "tofu"), append([]string{"-chdir=" + folder}, args...)...)
	// Neither the configuration of the user nor a registry matters here.
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "TF_CLI_CONFIG_FILE="+os.DevNull, "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%w\n%s%s", err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.String(), err
}

func TestFormat(t *testing.T) {
	if _, err := tofu(t, terraformDir, "fmt", "-check", "-recursive", "-diff", "-no-color"); err != nil {
		t.Errorf("tofu fmt: %v", err)
	}
	// The check must find a mistake.
	broken := t.TempDir()
	must(t, os.WriteFile(filepath.Join(broken, "main.tf"), []byte("locals {\n a=1\n}\n"), 0o600))
	if _, err := tofu(t, broken, "fmt", "-check"); err == nil {
		t.Error("tofu fmt accepts a file that is not formatted")
	}
}

// TestLint checks all folders with tflint: declarations that are not used, missing types and descriptions, references to
// what does not exist. It reads the module cluster with the values of its callers.
func TestLint(t *testing.T) {
	lint := func(folder string) (string, error) {
		config := filepath.Join(t.TempDir(), "tflint.hcl")
		must(t, os.WriteFile(config, []byte("config {\n  call_module_type = \"local\"\n}\nplugin \"terraform\" {\n  enabled = true\n  preset  = \"all\"\n}\n"), 0o600))
		cmd := exec.CommandContext(t.Context(), tool(t, "tflint"), "--chdir="+folder, "--config="+config, "--no-color")
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "TFLINT_DISABLE_VERSION_CHECK=1")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, folder := range append([]string{"cluster"}, clouds...) {
		if out, err := lint(filepath.Join(terraformDir, folder)); err != nil {
			t.Errorf("tflint of %s: %v\n%s", folder, err, out)
		}
	}
	broken := t.TempDir()
	must(t, os.WriteFile(filepath.Join(broken, "main.tf"), []byte("variable \"unused\" {\n  type = string\n}\n"), 0o600))
	if out, err := lint(broken); err == nil || !strings.Contains(out, "unused") {
		t.Errorf("tflint of an unused variable: %v\n%s", err, out)
	}
}

// moduleCopy returns a copy of the module cluster, with the user data, in which OpenTofu keeps its state.
func moduleCopy(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	sh(t, fmt.Sprintf("mkdir %[1]s/terraform && cp -r %[2]s/cluster %[1]s/terraform/ && cp -r %[2]s/../cloud-init %[1]s/", dir, terraformDir))
	folder := filepath.Join(dir, "terraform", "cluster")
	if _, err := tofu(t, folder, "init", "-no-color", "-input=false"); err != nil {
		t.Fatalf("tofu init: %v", err)
	}
	return folder
}

// inputs are the variables of the module cluster for a small cluster.
func inputs() map[string]any {
	downloads := map[string]any{}
	for _, name := range []string{"mem_etcd", "dist-scheduler", "kube-gateway", "kube-apiserver", "kube-controller-manager", "kubelet"} {
		downloads[name] = map[string]string{"url": "http://10.99.0.254/" + name, "sha256": strings.Repeat("0", 64)}
	}
	return map[string]any{
		"name": "lab", "downloads": downloads, "server_names": []string{"api.example"},
		"machines": map[string]any{
			"stores":     map[string]string{"store-0": "10.99.0.1", "store-1": "10.99.0.2", "store-2": "10.99.0.3"},
			"apiservers": map[string]string{"apiserver-0": "10.99.0.4"},
			"schedulers": map[string]string{"scheduler-0": "10.99.0.5"},
			"gateways":   map[string]string{"gateway-0": "10.99.0.6"},
			"nodes":      map[string]string{"node-0": "10.99.0.7"},
		},
	}
}

// outputs are those of the module cluster.
type outputs struct {
	userData                       map[string]string
	endpoint, kubeadmConfig, files string
}

// apply applies the module cluster, which has no resources: only its outputs are computed.
func apply(t *testing.T, folder string, variables map[string]any) (outputs, error) {
	t.Helper()
	text, err := json.Marshal(variables)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(folder, "terraform.tfvars.json"), text, 0o600))
	if _, err := tofu(t, folder, "apply", "-auto-approve", "-input=false", "-no-color"); err != nil {
		return outputs{}, err
	}
	out, err := tofu(t, folder, "output", "-json", "-no-color")
	must(t, err)
	var raw struct {
		UserData      struct{ Value map[string]string } `json:"user_data"`
		Endpoint      struct{ Value string }
		KubeadmConfig struct{ Value string } `json:"kubeadm_config"`
		Files         struct{ Value string }
	}
	must(t, json.Unmarshal([]byte(out), &raw))
	return outputs{raw.UserData.Value, raw.Endpoint.Value, raw.KubeadmConfig.Value, raw.Files.Value}, nil
}

// TestUserData validates the module cluster, and checks the user data of all machines as text. Clouds accept 16 KiB.
func TestUserData(t *testing.T) {
	folder := moduleCopy(t)
	if _, err := tofu(t, folder, "validate", "-no-color"); err != nil {
		t.Fatalf("tofu validate: %v", err)
	}
	all, err := apply(t, folder, inputs())
	must(t, err)
	if len(all.userData) != 7 || all.endpoint != "10.99.0.6:6443" {
		t.Fatalf("user data of %d machines, endpoint %q", len(all.userData), all.endpoint)
	}
	for name, text := range all.userData {
		var document struct {
			Hostname   string
			WriteFiles []struct{ Path, Content string } `json:"write_files"`
			Runcmd     [][]string
		}
		if err := yaml.Unmarshal([]byte(text), &document); err != nil || !strings.HasPrefix(text, "#cloud-config\n") {
			t.Fatalf("user data of %s: %v\n%s", name, err, text)
		}
		if document.Hostname != name || len(document.WriteFiles) < 2 || len(document.Runcmd) < 3 || len(text) > 16<<10 {
			t.Errorf("user data of %s has %d bytes, %d files and %d commands, hostname %q", name, len(text), len(document.WriteFiles), len(document.Runcmd), document.Hostname)
		}
		if strings.Contains(text, "PRIVATE KEY") || strings.Contains(all.files, name+" ") == false {
			t.Errorf("user data of %s has a key, or its files are missing in\n%s", name, all.files)
		}
	}
	one := inputs()
	one["machines"].(map[string]any)["stores"] = map[string]string{"store-0": "10.99.0.1"}
	all, err = apply(t, folder, one)
	must(t, err)
	if text := all.userData["store-0"]; !strings.Contains(text, "ETCD_WAL_MODE=fsync") || strings.Contains(text, "ETCD_INITIAL_CLUSTER") {
		t.Errorf("user data of a single store:\n%s", text)
	}
}

// TestWrongInputs checks that wrong variables are refused with the name of the variable.
func TestWrongInputs(t *testing.T) {
	folder := moduleCopy(t)
	for name, wrong := range map[string]func(map[string]any){
		"stores": func(in map[string]any) {
			in["machines"].(map[string]any)["stores"] = map[string]string{"a": "10.0.0.1", "b": "10.0.0.2"}
		},
		"unique": func(in map[string]any) {
			in["machines"].(map[string]any)["nodes"] = map[string]string{"store-0": "10.0.0.1"}
		},
		"apiservers": func(in map[string]any) { in["machines"].(map[string]any)["apiservers"] = map[string]string{} },
		"name:":      func(in map[string]any) { in["name"] = "Big Cluster" },
		"endpoint":   func(in map[string]any) { in["endpoint"] = "api.example" },
		"replication_log": func(in map[string]any) {
			in["replication_log"] = "never"
		},
		"SHA-256": func(in map[string]any) {
			in["downloads"].(map[string]any)["mem_etcd"] = map[string]string{"url": "http://host/file", "sha256": "1"}
		},
		"URL": func(in map[string]any) {
			in["downloads"].(map[string]any)["mem_etcd"] = map[string]string{"url": "file\nwith lines", "sha256": strings.Repeat("0", 64)}
		},
		"kubelet": func(in map[string]any) { delete(in["downloads"].(map[string]any), "kubelet") },
	} {
		variables := inputs()
		wrong(variables)
		if _, err := apply(t, folder, variables); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("a wrong %s: %v, want an error that names it", name, err)
		}
	}
}

// TestBundle checks what bundle.sh says about wrong arguments. TestCluster unpacks its archives.
func TestBundle(t *testing.T) {
	files := filepath.Join(t.TempDir(), "files")
	must(t, os.WriteFile(files, []byte("a /etc/a/key pki/key group\n"), 0o600))
	for want, args := range map[string][]string{
		"usage:":             {"a", files},
		"has no such machin": {"b", files, t.TempDir()},
		"pki/key is missing": {"a", files, t.TempDir()},
	} {
		out, err := exec.Command(filepath.Join(terraformDir, "bundle.sh"), args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("bundle.sh %q printed %q, %v; want an error with %q", args, out, err, want)
		}
	}
}
