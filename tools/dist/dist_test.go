package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// standIns returns a release whose programs are stand-ins: Go programs are this test, which has modules.
func standIns(t *testing.T) release {
	t.Helper()
	t.Chdir("../..")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	for _, program := range slices.Concat(rustPrograms, goPrograms) {
		write(t, filepath.Join(folder, program), "program")
	}
	for _, program := range goPrograms {
		if err := os.Remove(filepath.Join(folder, program)); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(self, filepath.Join(folder, program)); err != nil {
			t.Fatal(err)
		}
	}
	return release{programs: folder, version: "1.2.3", time: time.Unix(1_700_000_000, 0).UTC()}
}

// TestSameProgramsGiveTheSameFiles writes a release twice and compares all files.
func TestSameProgramsGiveTheSameFiles(t *testing.T) {
	need(t, "cargo")
	r := standIns(t)
	var written [2]string
	for i := range written {
		r.out = t.TempDir()
		for _, command := range []string{"archives", "sums"} {
			if err := r.run(command); err != nil {
				t.Fatal(err)
			}
		}
		written[i] = read(t, filepath.Join(r.out, sums))
	}
	if written[0] != written[1] || strings.Count(written[0], "\n") != len(rustPrograms)+len(goPrograms)+1 {
		t.Errorf("checksums of two builds:\n%s\n%s\nwant the same, of each archive and of the list of contents", written[0], written[1])
	}
	if err := r.run("more"); err == nil || !strings.Contains(err.Error(), `"more": no such command`) {
		t.Errorf("run() of an unknown command = %v, want an error", err)
	}
}

// TestContentsAreListed checks the list of what is compiled into the programs.
func TestContentsAreListed(t *testing.T) {
	need(t, "cargo")
	r := standIns(t)
	r.out = t.TempDir()
	if err := r.writeBOM(); err != nil {
		t.Fatal(err)
	}
	checkBOM(t, filepath.Join(r.out, "k8s-1m-1.2.3.cdx.json"))
}

// checkBOM checks that a list has libraries of each language, that references are defined, and that test libraries are
// missing.
func checkBOM(t *testing.T, path string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var document cdx.BOM
	if err := cdx.NewBOMDecoder(file, cdx.BOMFileFormatJSON).Decode(&document); err != nil {
		t.Fatal(err)
	}
	defined := map[string]cdx.Component{document.Metadata.Component.BOMRef: *document.Metadata.Component}
	for _, component := range *document.Components {
		defined[component.BOMRef] = component
	}
	for _, program := range slices.Concat(rustPrograms, goPrograms) {
		if c := defined[program]; c.Hashes == nil || len((*c.Hashes)[0].Value) != 64 {
			t.Errorf("program %s = %+v, want it with its checksum", program, c)
		}
	}
	for _, dependency := range *document.Dependencies {
		for _, ref := range append(*dependency.Dependencies, dependency.Ref) {
			if _, known := defined[ref]; !known {
				t.Errorf("%s depends on %s, which is not in the list", dependency.Ref, ref)
			}
		}
	}
	found := map[string]bool{}
	for _, component := range defined {
		found[component.Name] = true
		crate := strings.HasPrefix(component.PackageURL, "pkg:cargo/")
		if crate && (component.Hashes == nil || component.Licenses == nil) {
			t.Errorf("crate %+v, want it with its checksum and its license", component)
		}
	}
	for name, want := range map[string]bool{"tokio": true, "tikv-jemallocator": true, "std": true, "proptest": false} {
		if found[name] != want {
			t.Errorf("%s is in the list: %v, want %v", name, found[name], want)
		}
	}
}

// TestRelease checks the files of a release. The environment variable DIST names their folder; `make dist-test` sets
// it.
func TestRelease(t *testing.T) {
	dist := os.Getenv("DIST")
	if dist == "" {
		t.Skip("DIST is not set; run make dist-test")
	}
	t.Run("checksums", func(t *testing.T) {
		command := exec.Command("sha256sum", "--check", "--strict", sums)
		command.Dir = dist
		if output, err := command.CombinedOutput(); err != nil {
			t.Errorf("sha256sum --check: %v\n%s", err, output)
		}
	})
	t.Run("contents", func(t *testing.T) {
		lists, _ := filepath.Glob(filepath.Join(dist, "*.cdx.json"))
		if len(lists) != 1 {
			t.Fatalf("lists of contents = %v, want one", lists)
		}
		checkBOM(t, lists[0])
	})
	for _, program := range slices.Concat(rustPrograms, goPrograms) {
		t.Run("archive of "+program, func(t *testing.T) { checkArchive(t, dist, program) })
	}
	for _, program := range packaged {
		t.Run("package of "+program, func(t *testing.T) { checkPackage(t, dist, program) })
	}
}

// checkArchive unpacks an archive and runs its program.
func checkArchive(t *testing.T, dist, program string) {
	found, _ := filepath.Glob(filepath.Join(dist, program+"-[0-9]*.tar.gz"))
	if len(found) != 1 {
		t.Fatalf("archives = %v, want one", found)
	}
	folder := t.TempDir()
	if output, err := exec.Command("tar", "-xzf", found[0], "-C", folder, "--strip-components=1").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, output)
	}
	output, err := exec.Command(filepath.Join(folder, program), "--version").CombinedOutput()
	if err != nil || !strings.ContainsAny(string(output), "0123456789") {
		t.Errorf("%s --version = %s, %v, want its version", program, output, err)
	}
	if !strings.Contains(read(t, filepath.Join(folder, "LICENSE")), "Apache License") {
		t.Error("the archive has no license")
	}
}

// checkPackage checks the files and the scripts of a Debian package.
func checkPackage(t *testing.T, dist, program string) {
	need(t, "dpkg-deb")
	found, _ := filepath.Glob(filepath.Join(dist, strings.ReplaceAll(program, "_", "-")+"_*.deb"))
	if len(found) != 1 {
		t.Fatalf("packages = %v, want one", found)
	}
	contents, err := exec.Command("dpkg-deb", "--contents", found[0]).Output()
	if err != nil {
		t.Fatalf("dpkg-deb --contents: %v", err)
	}
	for _, want := range []string{
		"-rwxr-xr-x root/root", "./usr/bin/" + program, "./usr/lib/systemd/system/" + program + ".service",
		"./usr/lib/sysusers.d/" + program + ".conf", "./etc/default/" + program, "./etc/" + program + "/", "/copyright",
	} {
		if !strings.Contains(string(contents), want) {
			t.Errorf("files of the package:\n%s\nwant %s", contents, want)
		}
	}
	folder := t.TempDir()
	if output, err := exec.Command("dpkg-deb", "--raw-extract", found[0], folder).CombinedOutput(); err != nil {
		t.Fatalf("dpkg-deb: %v\n%s", err, output)
	}
	if files := read(t, filepath.Join(folder, "DEBIAN/conffiles")); !strings.Contains(files, "/etc/default/"+program) {
		t.Errorf("configuration files = %s, want /etc/default/%s, which an upgrade keeps", files, program)
	}
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		path := filepath.Join(folder, "DEBIAN", script)
		if output, err := exec.Command("sh", "-n", path).CombinedOutput(); err != nil || strings.Contains(read(t, path), "PROGRAM") {
			t.Errorf("script %s: %v\n%s\n%s", script, err, output, read(t, path))
		}
	}
	output, err := exec.Command(filepath.Join(folder, "usr/bin", program), "--version").CombinedOutput()
	if err != nil {
		t.Errorf("%s --version = %s, %v", program, output, err)
	}
}
