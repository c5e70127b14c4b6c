package main

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// packaged are the programs with a Debian package.
var packaged = []string{"mem_etcd", "kube-gateway", "dist-scheduler", "etcd-proxy"}

const systemd = "../../deploy/systemd/"

// need skips the test if a program is not installed.
func need(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%s is not installed", program)
	}
}

// TestUnitsAreCorrect lets systemd read each unit, in a root directory with the programs of its package. It must print
// nothing: unknown settings are only warnings.
func TestUnitsAreCorrect(t *testing.T) {
	need(t, "systemd-analyze")
	root := t.TempDir()
	units := filepath.Join(root, "usr/lib/systemd/system")
	files := map[string]string{"bin/kill": ""}
	for _, target := range []string{"sysinit", "basic", "shutdown", "network-online", "multi-user"} {
		files["usr/lib/systemd/system/"+target+".target"] = "[Unit]\nDescription=stub\n"
	}
	for _, program := range packaged {
		files["usr/bin/"+program] = ""
		files["usr/lib/systemd/system/"+program+".service"] = read(t, systemd+program+".service")
	}
	// These have no package.
	unpackaged := map[string]string{
		"network-agent": "network-agent.service", "network-gateway": "gateway/network-gateway.service",
		"network-gateway-node": "gateway/network-gateway-node.service",
	}
	files["usr/bin/network-agent"], files["usr/bin/network-gateway"] = "", ""
	for program, unit := range unpackaged {
		files["usr/lib/systemd/system/"+program+".service"] = read(t, "../../deploy/network/"+unit)
	}
	for path, content := range files {
		write(t, filepath.Join(root, path), content)
	}
	for _, program := range append(slices.Collect(maps.Keys(unpackaged)), packaged...) {
		if output := verify(root, program); output != "" {
			t.Errorf("systemd-analyze verify of %s printed %s", program, output)
		}
	}
	// The check must find a mistake.
	wrong := strings.Replace(read(t, systemd+"mem_etcd.service"), "NoNewPrivileges", "NoNewPrivilege", 1)
	write(t, filepath.Join(units, "mem_etcd.service"), wrong)
	if output := verify(root, "mem_etcd"); !strings.Contains(output, "NoNewPrivilege") {
		t.Errorf("systemd-analyze verify of a wrong unit printed %q, want its mistake", output)
	}
}

// verify returns what systemd says about a unit.
func verify(root, program string) string {
	output, err := exec.Command("systemd-analyze", "verify", "--root="+root, "--man=no", program+".service").CombinedOutput()
	if err != nil {
		return string(output) + err.Error()
	}
	return string(output)
}

// TestServicesHaveFewRights checks the exposure of each service, from 0 to 10, that systemd computes.
func TestServicesHaveFewRights(t *testing.T) {
	need(t, "systemd-analyze")
	const limit = "15" // Tenths. Below 2 is what systemd calls OK.
	check := func(unit string) (string, error) {
		output, err := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold="+limit, unit).CombinedOutput()
		return string(output), err
	}
	for _, program := range packaged {
		if output, err := check(systemd + program + ".service"); err != nil {
			t.Errorf("exposure of %s: %v\n%s", program, err, output)
		}
	}
	open := filepath.Join(t.TempDir(), "open.service")
	write(t, open, "[Service]\nExecStart=/bin/true\n")
	if output, err := check(open); err == nil {
		t.Errorf("exposure of a service with all rights is accepted:\n%s", output)
	}
}

// TestUsersAreCreated lets systemd-sysusers create the user of each service in an empty root directory.
func TestUsersAreCreated(t *testing.T) {
	need(t, "systemd-sysusers")
	if os.Getuid() != 0 {
		t.Skip("systemd-sysusers needs root")
	}
	root := t.TempDir()
	write(t, filepath.Join(root, "etc/.keep"), "")
	for _, program := range packaged {
		to := filepath.Join(root, "usr/lib/sysusers.d", program+".conf")
		write(t, to, read(t, systemd+program+".sysusers"))
	}
	if output, err := exec.Command("systemd-sysusers", "--root="+root).CombinedOutput(); err != nil {
		t.Fatalf("systemd-sysusers: %v\n%s", err, output)
	}
	for _, program := range packaged {
		unit := read(t, systemd+program+".service")
		if users := read(t, filepath.Join(root, "etc/passwd")); !strings.Contains(users, program+":") || !strings.Contains(unit, "User="+program+"\n") {
			t.Errorf("users = %s, want that of %s", users, program)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// write writes a file and the folders above it. Files in folders named bin are programs.
func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	mode := os.FileMode(0o644)
	if filepath.Base(filepath.Dir(path)) == "bin" {
		mode = 0o755
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}
