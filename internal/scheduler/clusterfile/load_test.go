package clusterfile

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

const nodeYAML = `apiVersion: v1
kind: Node
metadata: {name: NAME, managedFields: [{manager: kubelet}]}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "10"}}
`

const podJSON = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"NAME","namespace":"default","uid":"uid-NAME"},"spec":{"containers":[{"name":"c"}]}}`

func named(template, name string) string { return strings.ReplaceAll(template, "NAME", name) }

// write writes a file to a new directory and returns its path.
func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// summary returns the names of all nodes and pods.
func summary(o *Objects) string {
	var all []string
	for _, node := range o.Nodes() {
		all = append(all, node.Name)
	}
	for _, pod := range o.Pods() {
		all = append(all, pod.Namespace+"/"+pod.Name)
	}
	return strings.Join(all, " ")
}

// TestFormatsOfKubectl reads each form in which kubectl and the API server write objects.
func TestFormatsOfKubectl(t *testing.T) {
	nodeItem := `{"metadata":{"name":"a"}}`
	for name, c := range map[string]struct{ content, want string }{
		"one object":                           {named(podJSON, "p"), "default/p"},
		"a sequence of objects":                {named(podJSON, "p") + "\n" + named(podJSON, "q"), "default/p default/q"},
		"a List, items before the kind":        {`{"apiVersion":"v1","items":[` + named(podJSON, "p") + `,` + named(podJSON, "q") + `],"kind":"List","metadata":{}}`, "default/p default/q"},
		"a NodeList, items without a kind":     {`{"kind":"NodeList","apiVersion":"v1","items":[` + nodeItem + `]}`, "a"},
		"an empty List":                        {`{"apiVersion":"v1","items":[],"kind":"List"}`, ""},
		"YAML with several documents":          {named(nodeYAML, "a") + "---\n" + named(nodeYAML, "b") + "---\n# nothing\n---\n" + named(podJSON, "p"), "a b default/p"},
		"a List in YAML":                       {"apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Node\n  metadata: {name: a}\n- {apiVersion: v1, kind: Pod, metadata: {name: p}}\n", "a default/p"},
		"kinds of the same name":               {`{"apiVersion":"example.com/v1","kind":"Node","metadata":{"name":"other"}}` + named(podJSON, "p"), "default/p"},
		"the same version of an object, twice": {named(podJSON, "p") + named(podJSON, "p"), "default/p"},
		"unknown fields":                       {`{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"},"spec":{"newField":1}}`, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := Load([]string{write(t, "f", c.content)}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := summary(objects); got != c.want {
				t.Errorf("Load() has %q, want %q", got, c.want)
			}
			for _, node := range objects.Nodes() {
				if node.ManagedFields != nil {
					t.Errorf("node %s still has managed fields", node.Name)
				}
			}
		})
	}
}

// TestFilesDirectoriesAndStandardInput reads several sources together.
func TestFilesDirectoriesAndStandardInput(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"1.json": named(podJSON, "p"), "2.yaml": named(nodeYAML, "a"), "3.yml": named(nodeYAML, "b"), "notes.txt": "not an object",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	objects, err := Load([]string{dir, Stdin}, strings.NewReader(named(nodeYAML, "c")))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := summary(objects), "a b c default/p"; got != want {
		t.Errorf("Load() has %q, want %q", got, want)
	}
}

// TestGarbageIsRefused checks that each error is one line, which names the file and the reason.
func TestGarbageIsRefused(t *testing.T) {
	for name, c := range map[string]struct{ content, want string }{
		"an empty file":         {"", "it is empty"},
		"white space":           {" \n\t\n", "it is empty"},
		"text":                  {"hello", "at byte"},
		"binary":                {"\x00\x01\x02\x03", "neither YAML nor JSON"},
		"half an object":        {named(podJSON, "p")[:40], "it ends within an object"},
		"half a List":           {`{"kind":"List","items":[` + named(podJSON, "p") + `,`, "it ends within an object"},
		"a list of numbers":     {"[1,2]", "expected an object"},
		"items are no list":     {`{"kind":"List","items":{}}`, "the field items is not a list"},
		"no kind":               {`{"metadata":{"name":"x"}}`, `object "x" has no kind`},
		"an unknown version":    {`{"apiVersion":"v7","kind":"Pod","metadata":{"name":"x"}}`, "version v7 of this kind is not known"},
		"a field of wrong type": {`{"apiVersion":"v1","kind":"Node","metadata":{"name":"x"},"spec":{"unschedulable":"maybe"}}`, `decoding Node "x"`},
		"no name":               {`{"apiVersion":"v1","kind":"Node","metadata":{}}`, "a Node has no name"},
		"two pods, one name":    {named(podJSON, "p") + strings.Replace(named(podJSON, "p"), "uid-p", "other", 1), "Pod default/p is also in"},
		"gzip":                  {"\x1f\x8b\x08\x00", "compressed with gzip"},
		"zstd, no archive":      {zstdMagic + "garbage", "not a valid snapshot"},
		"deep nesting":          {strings.Repeat(`{"a":`, 20000), "at byte"},
		"aliases that grow":     {billionLaughs(), ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, "f", c.content)
			_, err := Load([]string{path}, nil)
			if err == nil {
				t.Fatal("Load() succeeded")
			}
			if text := err.Error(); !strings.HasPrefix(text, path+": ") || strings.Contains(text, "\n") || !strings.Contains(text, c.want) {
				t.Errorf("Load() = error %q, want one line with the file and %q", text, c.want)
			}
		})
	}
}

// billionLaughs returns a YAML document whose aliases expand to 10^9 strings.
func billionLaughs() string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < 9; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 10), ","))
	}
	return b.String()
}

func TestMissingFilesAreErrors(t *testing.T) {
	if _, err := Load([]string{"/no/such/file"}, nil); err == nil || err.Error() != "/no/such/file: no such file or directory" {
		t.Errorf("Load() = error %v", err)
	}
	if _, err := Load([]string{t.TempDir()}, nil); err == nil || !strings.Contains(err.Error(), "the directory has no files") {
		t.Errorf("Load() = error %v", err)
	}
}

// endless returns the same bytes again and again.
type endless string

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = e[i%len(e)]
	}
	return len(p), nil
}

// TestInputThatNeverEndsIsRefused checks that the size of an object is limited.
func TestInputThatNeverEndsIsRefused(t *testing.T) {
	if _, err := Load([]string{Stdin}, endless("[")); err == nil {
		t.Error("Load() accepts endless brackets")
	}
	start := strings.NewReader(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"`)
	_, err := Load([]string{Stdin}, &joined{start, endless("a")})
	if err == nil || !strings.Contains(err.Error(), "an object is larger than 16 MiB") {
		t.Errorf("Load() = error %v, want one about the size of an object", err)
	}
}

// joined reads one reader to its end, and then another one.
type joined struct {
	first  *strings.Reader
	second endless
}

func (j *joined) Read(p []byte) (int, error) {
	if j.first.Len() > 0 {
		return j.first.Read(p)
	}
	return j.second.Read(p)
}

func TestCompleteAddsNamespaces(t *testing.T) {
	objects, err := Load([]string{Stdin}, strings.NewReader(named(podJSON, "p")+named(podJSON, "q")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := objects.Complete(); err == nil || !strings.Contains(err.Error(), "the cluster has no nodes") {
		t.Errorf("Complete() without nodes = error %v", err)
	}
	if err := objects.Add(&v1.Node{}, "test"); err == nil {
		t.Error("Add() accepts a node without a name")
	}
	node := &v1.Node{}
	node.Name = "a"
	if err := objects.Add(node, "test"); err != nil {
		t.Fatal(err)
	}
	notes, err := objects.Complete()
	if err != nil || len(notes) != 1 {
		t.Fatalf("Complete() = %v, %v, want one note about namespaces", notes, err)
	}
	if ns := ofKind[*v1.Namespace](objects, "Namespace"); len(ns) != 1 || ns[0].Labels[v1.LabelMetadataName] != "default" {
		t.Errorf("the namespaces are %v, want default with its label", ns)
	}
}

// FuzzLoad reads arbitrary bytes in all formats. They must be read or refused, without a panic.
func FuzzLoad(f *testing.F) {
	f.Add([]byte(named(podJSON, "p")))
	f.Add([]byte(named(nodeYAML, "a") + "---\n" + named(nodeYAML, "b")))
	f.Add([]byte(`{"kind":"NodeList","apiVersion":"v1","items":[{"metadata":{"name":"a"}}]}`))
	f.Add(etcdSnapshot(f, sampleChanges(f, 3)))
	f.Add(memEtcdSnapshot(f, sampleChanges(f, 3)))
	f.Add(archiveOf(f, etcdSnapshot(f, sampleChanges(f, 1))))
	f.Fuzz(func(t *testing.T, content []byte) {
		objects := New()
		err := load(bytes.NewReader(content), "input", objects)
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("the error has several lines: %q", err)
		}
	})
}

// FuzzEtcd changes bytes of a snapshot of etcd, behind the checksum of the file.
func FuzzEtcd(f *testing.F) {
	whole := etcdSnapshot(f, sampleChanges(f, 200))
	f.Add(uint32(8192), uint64(1), uint32(16), uint64(1<<40))
	f.Fuzz(func(t *testing.T, at uint32, value uint64, other uint32, second uint64) {
		damaged := bytes.Clone(whole)
		for offset, value := range map[uint32]uint64{at: value, other: second} {
			position := int(offset) % (len(damaged) - 8)
			le.PutUint64(damaged[position:], value)
		}
		_ = readEtcd(bytes.NewReader(damaged), int64(len(damaged)), New(), "input")
	})
}

// FuzzLoadPods reads arbitrary manifests.
func FuzzLoadPods(f *testing.F) {
	f.Add(named(podJSON, "p"))
	f.Add(deployment)
	f.Add(statefulSet)
	f.Fuzz(func(t *testing.T, content string) {
		if strings.Contains(content, "eplicas") && strings.ContainsAny(content, "56789") {
			t.Skip("many replicas take long")
		}
		_, _ = LoadPods(Stdin, strings.NewReader(content), New())
	})
}
