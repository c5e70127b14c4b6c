package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

var testRelease = release{version: "1.2.3", revision: "abc", time: time.Unix(1_700_000_000, 0).UTC()}

// staticProgram builds a static program that prints its name, as stand-in for all programs, and returns its folder.
func staticProgram(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	source := filepath.Join(folder, "main.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() { println(\"ok\") }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, p := range all {
		to := filepath.Join(folder, p.name)
		if i > 0 {
			if err := os.Link(filepath.Join(folder, all[0].name), to); err != nil {
				t.Fatal(err)
			}
			continue
		}
		command := exec.Command("go", "build", "-o", to, source)
		command.Env = append(os.Environ(), "CGO_ENABLED=0")
		if output, err := command.CombinedOutput(); err != nil {
			t.Fatalf("building: %v\n%s", err, output)
		}
	}
	return folder
}

// TestSameProgramsGiveTheSameBytes writes all images twice and compares all files.
func TestSameProgramsGiveTheSameBytes(t *testing.T) {
	programs := staticProgram(t)
	var sums [2]map[string]string
	for i := range sums {
		out := t.TempDir()
		if err := writeAll(programs, out, nil, testRelease); err != nil {
			t.Fatal(err)
		}
		sums[i] = checksums(t, out)
	}
	if len(sums[0]) < 6*len(all) {
		t.Fatalf("images have %d files, want at least %d", len(sums[0]), 6*len(all))
	}
	for path, sum := range sums[0] {
		if sums[1][path] != sum {
			t.Errorf("%s differs in the second build", path)
		}
	}
	// The comparison must find a difference.
	later := testRelease
	later.time = later.time.Add(time.Second)
	out := t.TempDir()
	if err := writeAll(programs, out, nil, later); err != nil {
		t.Fatal(err)
	}
	if index := filepath.Join("mem_etcd", "index.json"); checksums(t, out)[index] == sums[0][index] {
		t.Error("images of another time are the same, want a difference")
	}
}

func checksums(t *testing.T, folder string) map[string]string {
	t.Helper()
	sums := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		sum := sha256.Sum256(content)
		sums[strings.TrimPrefix(path, folder+"/")] = hex.EncodeToString(sum[:])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sums
}

func TestImagesAreValidAndLabelled(t *testing.T) {
	out := t.TempDir()
	if err := writeAll(staticProgram(t), out, nil, testRelease); err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		image, annotations := readImage(t, filepath.Join(out, p.name))
		if err := validate.Image(image); err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Config.User != "65532:65532" || config.OS != "linux" || config.Architecture != platform.Architecture {
			t.Errorf("%s: user %q, platform %s/%s, want a user that is not root, and the platform", p.name, config.Config.User, config.OS, config.Architecture)
		}
		for label, want := range map[string]string{"title": p.name, "version": "1.2.3", "revision": "abc", "licenses": "Apache-2.0", "created": "2023-11-14T22:13:20Z"} {
			if got := config.Config.Labels["org.opencontainers.image."+label]; got != want {
				t.Errorf("%s: label %s = %q, want %q", p.name, label, got, want)
			}
		}
		if annotations["org.opencontainers.image.ref.name"] != "1.2.3" || annotations["io.containerd.image.name"] != "localhost/"+p.name+":1.2.3" {
			t.Errorf("%s: annotations = %v, want its tag", p.name, annotations)
		}
		if _, err := os.Stat(filepath.Join(out, p.name+".tar")); err != nil {
			t.Errorf("%s: no archive: %v", p.name, err)
		}
	}
}

func TestOnlyNamedProgramsGetImages(t *testing.T) {
	programs, out := staticProgram(t), t.TempDir()
	if err := writeAll(programs, out, []string{"node-sim"}, testRelease); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(out); err != nil || len(entries) != 2 {
		t.Errorf("files of one image = %v, %v, want a folder and an archive", entries, err)
	}
	if err := writeAll(programs, out, []string{"node"}, testRelease); err == nil || !strings.Contains(err.Error(), `"node": no such program`) {
		t.Errorf("writeAll() of an unknown program = %v, want an error", err)
	}
}

func TestCertificatesAreReadable(t *testing.T) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(rootCertificates()) || bytes.Count(rootCertificates(), []byte("BEGIN CERTIFICATE")) < 50 {
		t.Errorf("certificates of the images cannot be read")
	}
}

func TestProgramsThatNeedLibrariesAreRejected(t *testing.T) {
	for _, path := range []string{"/bin/sh", "/usr/bin/env"} {
		if err := checkStatic(path); err == nil || !strings.Contains(err.Error(), "build/static.sh") {
			t.Errorf("checkStatic(%s) = %v, want an error that says how to build it", path, err)
		}
	}
	if err := checkStatic(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("checkStatic() of a missing program succeeded, want an error")
	}
}

// readImage returns the only image of a layout, and the annotations of its descriptor.
func readImage(t *testing.T, folder string) (v1.Image, map[string]string) {
	t.Helper()
	path, err := layout.FromPath(folder)
	if err != nil {
		t.Fatal(err)
	}
	index, err := path.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("index of %s = %+v, %v, want one image", folder, manifest, err)
	}
	image, err := path.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return image, manifest.Manifests[0].Annotations
}

// unpack writes the files of an image into a folder.
func unpack(t *testing.T, image v1.Image, folder string) {
	t.Helper()
	content := mutate.Extract(image)
	defer content.Close()
	for reader := tar.NewReader(content); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(folder, header.Name)
		err = os.MkdirAll(filepath.Dir(path), 0o755)
		if header.Typeflag == tar.TypeDir {
			err = errors.Join(err, os.MkdirAll(path, 0o755), os.Chmod(path, header.FileInfo().Mode()))
		} else {
			var data []byte
			data, err = io.ReadAll(reader)
			err = errors.Join(err, os.WriteFile(path, data, header.FileInfo().Mode()))
		}
		if err = errors.Join(err, os.Chown(path, header.Uid, header.Gid)); err != nil {
			t.Fatal(err)
		}
	}
}
