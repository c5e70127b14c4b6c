package snapshot

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/snapshot/archive"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

// testFiles returns the files of a small snapshot. Its store is not one that a store can read.
func testFiles(t testing.TB) []archive.Content {
	t.Helper()
	settings := clusterdir.DefaultSettings()
	settings.Complete()
	encoded, err := clusterdir.NewConfig("saved", settings).Encode()
	if err != nil {
		t.Fatal(err)
	}
	return []archive.Content{
		archive.InMemory(archive.ClusterFile, encoded), archive.InMemory("pki/ca.crt", []byte("certificate")), archive.InMemory("pki/ca.key", []byte("key")),
		archive.InMemory("pki/etcd/ca.crt", nil), archive.InMemory(archive.StoreFile, bytes.Repeat([]byte("store"), 100_000)),
	}
}

func testManifest() archive.Manifest {
	return archive.Manifest{Name: "saved", Created: time.Unix(1, 0).UTC(), Store: archive.Store{Kind: clusterdir.StoreMemEtcd, Revision: 7, Keys: 3}}
}

// validSnapshot returns the content of a small snapshot file.
func validSnapshot(t testing.TB) []byte {
	t.Helper()
	var file bytes.Buffer
	if _, err := archive.Write(&file, testManifest(), testFiles(t)); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// extractAll reads a snapshot and returns its manifest and its files by name.
func extractAll(snapshot []byte) (archive.Manifest, map[string]string, error) {
	reader, err := archive.NewReader(bytes.NewReader(snapshot))
	if err != nil {
		return archive.Manifest{}, nil, err
	}
	defer reader.Close()
	files := map[string]*memoryFile{}
	err = reader.Extract(func(file archive.File) (io.WriteCloser, error) {
		files[file.Name] = &memoryFile{}
		return files[file.Name], nil
	}, io.Discard)
	texts := map[string]string{}
	for name, file := range files {
		texts[name] = file.String()
	}
	return reader.Manifest, texts, err
}

func TestSnapshotIsReadAsWritten(t *testing.T) {
	manifest, files, err := extractAll(validSnapshot(t))
	if err != nil {
		t.Fatal(err)
	}
	if want := testManifest(); manifest.Name != want.Name || !manifest.Created.Equal(want.Created) || manifest.Store != want.Store {
		t.Errorf("manifest = %+v, want %+v", manifest, want)
	}
	for _, want := range testFiles(t) {
		content, _ := io.ReadAll(want.Reader)
		if got, found := files[want.Name]; !found || got != string(content) {
			t.Errorf("%s has %d bytes (found: %v), want %d", want.Name, len(got), found, len(content))
		}
	}
	if len(files) != len(testFiles(t)) {
		t.Errorf("%d files, want %d", len(files), len(testFiles(t)))
	}
}

// TestOwnStoresHaveFilesOfTheirOwn checks the format of a file with several stores, which an older k1m must reject, and
// that the description of the main store counts the keys of all stores.
func TestOwnStoresHaveFilesOfTheirOwn(t *testing.T) {
	manifest := testManifest()
	manifest.Store.Keys = 0
	manifest.AddStore("store", archive.Store{Revision: 7, Keys: 3, Nodes: 2})
	manifest.AddStore("store-pods", archive.Store{Revision: 9, Keys: 4, Pods: 4})
	var file bytes.Buffer
	if _, err := archive.Write(&file, manifest, append(testFiles(t), archive.InMemory("store-pods.snapshot", []byte("pods")))); err != nil {
		t.Fatal(err)
	}
	got, files, err := extractAll(file.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	want := archive.Store{Kind: clusterdir.StoreMemEtcd, Revision: 7, Keys: 7, Nodes: 2, Pods: 4}
	if got.Format != 2 || got.Store != want || !slices.Equal(got.OwnStores, []archive.OwnStore{{Resource: "pods", Revision: 9, Keys: 4}}) || files["store-pods.snapshot"] != "pods" {
		t.Errorf("manifest = %+v with the store of pods %q, want format 2, %+v and 4 pods at revision 9", got, files["store-pods.snapshot"], want)
	}
	if single, _, err := extractAll(validSnapshot(t)); err != nil || single.Format != 1 {
		t.Errorf("a file with one store has format %d (%v), want 1, which an older k1m reads", single.Format, err)
	}
	var page strings.Builder
	got.Print(&page)
	if want := "of them 4 pods in their own store, revision 9\n"; !strings.Contains(page.String(), want) {
		t.Errorf("Print() wrote\n%s\nwant %q in it", &page, want)
	}
}

// entry is an entry of a hostile archive.
type entry struct {
	tar.Header
	content []byte
}

// entriesOf returns the entries of a valid snapshot, whose manifest change has changed.
func entriesOf(t testing.TB, change func(*archive.Manifest)) []entry {
	t.Helper()
	manifest := testManifest()
	manifest.Format = 1
	var entries []entry
	for _, file := range testFiles(t) {
		manifest.Files = append(manifest.Files, file.File)
		data, _ := io.ReadAll(file.Reader)
		entries = append(entries, regular(file.Name, data))
	}
	change(&manifest)
	encoded, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}
	return append([]entry{regular(archive.ManifestFile, encoded)}, entries...)
}

func regular(name string, data []byte) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(data)), Mode: archive.EntryMode}, data}
}

// compressed returns an archive with the entries, followed by more.
func compressed(t testing.TB, entries []entry, more []byte) []byte {
	t.Helper()
	var file bytes.Buffer
	compressor, err := zstd.NewWriter(&file)
	if err != nil {
		t.Fatal(err)
	}
	archive := tar.NewWriter(compressor)
	for _, entry := range entries {
		if err := archive.WriteHeader(&entry.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write(entry.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := compressor.Write(more); err != nil {
		t.Fatal(err)
	}
	if err := compressor.Close(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// hostileSnapshots returns files that a restore must reject, each with a part of the error.
func hostileSnapshots(t testing.TB) map[string]struct {
	file []byte
	want string
} {
	unchanged := func(*archive.Manifest) {}
	rename := func(index int, name string) func(*archive.Manifest) {
		return func(m *archive.Manifest) { m.Files[index].Name = name }
	}
	// changed returns a snapshot with one changed entry; entry 0 is the manifest.
	changed := func(index int, change func(*entry)) []byte {
		entries := entriesOf(t, unchanged)
		change(&entries[index])
		return compressed(t, entries, nil)
	}
	fromManifest := func(change func(*archive.Manifest)) []byte { return compressed(t, entriesOf(t, change), nil) }
	valid := validSnapshot(t)
	damaged := bytes.Clone(valid)
	damaged[len(damaged)/2] ^= 1
	without := entriesOf(t, unchanged)
	return map[string]struct {
		file []byte
		want string
	}{
		"empty file":    {nil, "reading its manifest"},
		"text":          {[]byte("not an archive"), "reading its manifest"},
		"empty archive": {compressed(t, nil, nil), "reading its manifest"},
		"truncated":     {valid[:len(valid)-1], "unexpected EOF"},
		"half":          {valid[:len(valid)/2], "unexpected EOF"},
		"damaged":       {damaged, ""},
		"no manifest":   {compressed(t, without[1:], nil), "its first entry is not manifest.json"},
		"manifest that is a link": {changed(0, func(e *entry) {
			*e = entry{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: archive.ManifestFile, Linkname: "/etc/passwd"}}
		}), "its first entry is not manifest.json"},
		"manifest that is not JSON":  {changed(0, func(e *entry) { *e = regular(archive.ManifestFile, []byte("{")) }), "reading its manifest"},
		"manifest of another format": {fromManifest(func(m *archive.Manifest) { m.Format = 99 }), "the snapshot has format 99, but this k1m supports format 2"},
		"manifest without format":    {fromManifest(func(m *archive.Manifest) { m.Format = 0 }), "no format version"},
		"unknown store":              {fromManifest(func(m *archive.Manifest) { m.Store.Kind = "redis" }), `unknown store "redis"`},
		"path outside":               {fromManifest(rename(1, "../../x.crt")), "unexpected file"},
		"absolute path":              {fromManifest(rename(1, "/etc/passwd")), "unexpected file"},
		"path through pki":           {fromManifest(rename(3, "pki/../x.crt")), "unexpected file"},
		"other file":                 {fromManifest(rename(3, "state.json")), "unexpected file"},
		"file listed twice":          {fromManifest(rename(2, "pki/ca.crt")), "twice"},
		"no store":                   {fromManifest(func(m *archive.Manifest) { m.Files = m.Files[:4] }), "lacks store.snapshot"},
		"huge store":                 {fromManifest(func(m *archive.Manifest) { m.Files[4].Bytes = 1 << 60 }), "at most"},
		"huge certificate":           {fromManifest(func(m *archive.Manifest) { m.Files[1].Bytes = 1 << 30 }), "at most"},
		"negative size":              {fromManifest(func(m *archive.Manifest) { m.Files[1].Bytes = -1 }), "the size -1"},
		"no checksum":                {fromManifest(func(m *archive.Manifest) { m.Files[1].SHA256 = "" }), "no checksum"},
		"too many files":             {fromManifest(func(m *archive.Manifest) { m.Files = append(m.Files, make([]archive.File, 1024)...) }), "at most 1024"},
		"own store that is missing":  {fromManifest(func(m *archive.Manifest) { m.OwnStores = []archive.OwnStore{{Resource: "pods"}} }), "lacks store-pods.snapshot"},
		"own store that is a path": {fromManifest(func(m *archive.Manifest) {
			m.OwnStores = []archive.OwnStore{{Resource: "../x"}}
			m.Files[3].Name = "store-../x.snapshot"
		}), "unexpected file"},
		"store that is not described":  {fromManifest(rename(3, "store-pods.snapshot")), "but not that store"},
		"wrong checksum":               {fromManifest(func(m *archive.Manifest) { m.Files[4].SHA256 = strings.Repeat("0", 64) }), "the checksum of store.snapshot is wrong"},
		"entry with another name":      {changed(2, func(e *entry) { e.Name = "../../x.crt" }), "does not match pki/ca.crt"},
		"entry that is a link":         {changed(2, func(e *entry) { e.Typeflag, e.Linkname, e.Size, e.content = tar.TypeSymlink, "/etc/passwd", 0, nil }), "does not match pki/ca.crt"},
		"entry that is a hard link":    {changed(2, func(e *entry) { e.Typeflag, e.Linkname, e.Size, e.content = tar.TypeLink, "cluster.json", 0, nil }), "does not match pki/ca.crt"},
		"entry that is a device":       {changed(2, func(e *entry) { e.Typeflag, e.Size, e.content = tar.TypeChar, 0, nil }), "does not match pki/ca.crt"},
		"entry of another size":        {changed(2, func(e *entry) { *e = regular("pki/ca.crt", []byte("short")) }), "does not match pki/ca.crt"},
		"missing entry":                {compressed(t, without[:5], nil), "reading store.snapshot: unexpected EOF"},
		"additional entry":             {compressed(t, append(entriesOf(t, unchanged), regular("more", nil)), nil), `"more", which is not in its manifest`},
		"more than the manifest says":  {compressed(t, entriesOf(t, unchanged), make([]byte, 16<<20)), "more than its manifest states"},
		"settings that are not JSON":   {withSettings(t, "{"), "cluster.json is damaged"},
		"settings of another layout":   {withSettings(t, `{"layout":99}`), "cluster.json has layout 99"},
		"settings that are not valid":  {withSettings(t, `{"layout":1,"settings":{"nodes":-1,"zones":1,"store":"mem_etcd","scheduler":"kube-scheduler","apiservers":1}}`), "its settings: --nodes -1"},
		"settings with an own store":   {withSettings(t, `{"layout":1,"settings":{"zones":1,"store":"mem_etcd","storeFor":["pods=own"],"scheduler":"kube-scheduler","apiservers":1}}`), "different stores"},
		"settings with another store":  {withSettings(t, `{"layout":1,"settings":{"zones":1,"store":"etcd","scheduler":"kube-scheduler","apiservers":1}}`), "different stores"},
		"settings with a remote store": {withSettings(t, `{"layout":1,"settings":{"storeAddress":"http://127.0.0.1:1"}}`), "a store that k1m does not run"},
	}
}

// withSettings returns a snapshot with another cluster.json.
func withSettings(t testing.TB, text string) []byte {
	t.Helper()
	files := testFiles(t)
	files[0] = archive.InMemory(archive.ClusterFile, []byte(text))
	var file bytes.Buffer
	if _, err := archive.Write(&file, testManifest(), files); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// TestHostileSnapshotsAreRejected restores files that are damaged or made to do harm. A restore must fail with
// one line and leave nothing behind.
func TestHostileSnapshotsAreRejected(t *testing.T) {
	for name, hostile := range hostileSnapshots(t) {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			t.Setenv("K1M_HOME", filepath.Join(home, "k1m"))
			path := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(path, hostile.file, 0o600); err != nil {
				t.Fatal(err)
			}
			dir, err := clusterdir.NewDir("copy")
			if err != nil {
				t.Fatal(err)
			}
			_, err = Restore(t.Context(), RestoreOptions{Dir: dir, File: path, Display: progress.New(io.Discard)})
			if err == nil || !strings.Contains(err.Error(), hostile.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("Restore() = %q, want one line with %q", fmt.Sprint(err), hostile.want)
			}
			if left := filesIn(t, home); len(left) > 0 {
				t.Errorf("Restore() left %q behind, want no files", left)
			}
		})
	}
}

// filesIn returns the paths below a directory, without directories that only contain other directories.
func filesIn(t *testing.T, dir string) []string {
	t.Helper()
	var paths []string
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && (!entry.IsDir() || strings.HasPrefix(entry.Name(), ".")) {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// TestFilesOfACluster checks which files of a cluster a snapshot contains, and that it contains no ports.
func TestFilesOfACluster(t *testing.T) {
	t.Setenv("K1M_HOME", t.TempDir())
	dir, err := clusterdir.NewDir("saved")
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.Create(); err != nil {
		t.Fatal(err)
	}
	config := clusterdir.NewConfig("saved", clusterdir.DefaultSettings())
	config.Ports["store"] = 1234
	config.Settings.GatewayConfig = filepath.Join(t.TempDir(), "gateway.yaml")
	for _, path := range []string{
		config.Settings.GatewayConfig, dir.Log("store"), dir.StateFile(), filepath.Join(dir.PKI(), "sa.pub"), filepath.Join(dir.PKI(), "ca.key"),
		filepath.Join(dir.PKI(), "replica-ca.key"), filepath.Join(dir.PKI(), ".ca.key-123"), filepath.Join(dir.PKI(), "etcd", "ca.key"),
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(path), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files, err := clusterFiles(dir, config)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		names = append(names, file.Name)
	}
	if want := []string{archive.ClusterFile, archive.GatewayConfigFile, "pki/ca.key", "pki/etcd/ca.key", "pki/sa.pub"}; !slices.Equal(names, want) {
		t.Errorf("files = %q, want %q", names, want)
	}
	settings, err := io.ReadAll(files[0].Reader)
	if err != nil || strings.Contains(string(settings), "1234") || config.Ports["store"] != 1234 {
		t.Errorf("cluster.json = %s (error %v), want no ports", settings, err)
	}
}

func TestRestoreDoesNotReplaceACluster(t *testing.T) {
	t.Setenv("K1M_HOME", t.TempDir())
	dir, err := clusterdir.NewDir("copy")
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.Create(); err != nil {
		t.Fatal(err)
	}
	_, err = Restore(t.Context(), RestoreOptions{Dir: dir, File: "does not matter", Display: progress.New(io.Discard)})
	if !errors.Is(err, clusterdir.ErrExists) {
		t.Errorf("Restore() over a cluster = %v, want %v", err, clusterdir.ErrExists)
	}
}

// FuzzReader reads hostile files. A reader must neither panic nor read more than the manifest states.
func FuzzReader(f *testing.F) {
	f.Add(validSnapshot(f))
	for _, hostile := range hostileSnapshots(f) {
		f.Add(hostile.file)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		manifest, files, err := extractAll(file)
		total := 0
		for _, text := range files {
			total += len(text)
		}
		limit := int64(0)
		for _, listed := range manifest.Files {
			limit += listed.Bytes
		}
		if err == nil && int64(total) != limit {
			t.Errorf("%d bytes were extracted, the manifest states %d", total, limit)
		}
	})
}
