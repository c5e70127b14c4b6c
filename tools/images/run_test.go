package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestProgramsRunInTheirImages unpacks each image and runs its program in a chroot, as the user of the image. The
// environment variable IMAGES names the folder of the images, and PROGRAMS the programs if these are not all; `make
// images-test` sets them.
func TestProgramsRunInTheirImages(t *testing.T) {
	images := os.Getenv("IMAGES")
	if images == "" {
		t.Skip("IMAGES is not set; run make images-test")
	}
	only := strings.Fields(os.Getenv("PROGRAMS"))
	for _, p := range all {
		if len(only) > 0 && !slices.Contains(only, p.name) {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			root := unpacked(t, filepath.Join(images, p.name))
			output, err := inChroot(root, "/usr/local/bin/"+p.name, "--version").CombinedOutput()
			if err != nil || !strings.ContainsAny(string(output), "0123456789") {
				t.Errorf("%s --version = %s, %v, want its version", p.name, output, err)
			}
		})
	}
}

// TestNamesAreResolvedInImages checks that a static program finds addresses of names: mem_etcd listens on a name that
// only the image's /etc/hosts has. Then it stops, because its client URL is not free.
func TestNamesAreResolvedInImages(t *testing.T) {
	images := os.Getenv("IMAGES")
	if images == "" {
		t.Skip("IMAGES is not set; run make images-test")
	}
	if only := strings.Fields(os.Getenv("PROGRAMS")); len(only) > 0 && !slices.Contains(only, "mem_etcd") {
		t.Skip("PROGRAMS has no mem_etcd")
	}
	root := unpacked(t, filepath.Join(images, "mem_etcd"))
	if err := os.WriteFile(filepath.Join(root, "etc/hosts"), []byte("192.0.2.1 known.test\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	// 192.0.2.1 is reserved for documentation, so no machine can listen on it.
	for name, want := range map[string]string{"known.test": "assign requested address", "unknown.test": "lookup"} {
		output, err := inChroot(root, "/usr/local/bin/mem_etcd", "--data-dir", "/tmp/data", "--listen-client-urls", "http://"+name+":23790").CombinedOutput()
		if err == nil || !strings.Contains(string(output), want) {
			t.Errorf("mem_etcd that listens on %s = %s, %v, want %q", name, output, err, want)
		}
	}
}

// unpacked returns a folder with the files of an image. It skips the test if the user is not root.
func unpacked(t *testing.T, layout string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("chroot needs root")
	}
	image, _ := readImage(t, layout)
	root := t.TempDir()
	unpack(t, image, root)
	// The programs do not run as root, and t.TempDir is private.
	for folder := root; folder != os.TempDir() && folder != "/"; folder = filepath.Dir(folder) {
		if err := os.Chmod(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// inChroot returns a command that runs in a folder as root directory, as the user of the images.
func inChroot(root, program string, args ...string) *exec.Cmd {
	command := exec.Command(program, args...)
	command.Path, command.Dir, command.Env = program, "/", []string{"PATH=/usr/local/bin"}
	command.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: user, Gid: user}}
	return command
}
