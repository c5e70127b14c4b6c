// Package references records random pods with the ConfigMaps and Secrets to which they refer, as kube-apiserver's Node
// authorizer sees it. The unit tests of kube-gateway read the record. The test here says whether it still is what this
// version of Kubernetes says.
//
//	REFERENCES_UPDATE=true   write the record
package references

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

const (
	path = "../../../crates/kube-gateway/src/node_path/watches/testdata/pods.gz"
	// count is the number of pods in the record.
	count = 160
	// shallow is the depth down to which most pointers are set.
	shallow = 7
	// volumes is the number of volumes of a pod.
	volumes = 8
)

// TestRecord compares the record with what Kubernetes says now.
func TestRecord(t *testing.T) {
	expected := record(t)
	if os.Getenv("REFERENCES_UPDATE") != "" {
		var compressed bytes.Buffer
		writer, err := gzip.NewWriterLevel(&compressed, gzip.BestCompression)
		must(t, err)
		_, err = writer.Write(expected)
		must(t, err)
		must(t, writer.Close())
		must(t, os.WriteFile(path, compressed.Bytes(), 0o644))
	}
	file, err := os.Open(path)
	must(t, err)
	defer file.Close()
	reader, err := gzip.NewReader(file)
	must(t, err)
	got, err := io.ReadAll(reader)
	must(t, err)
	if !bytes.Equal(got, expected) {
		t.Errorf("%s is not what Kubernetes says; compare the messages of a pod in generated.proto with references.rs, and run this test with REFERENCES_UPDATE=true", path)
	}
}

// record encodes each pod: the length of the object and the object, then the length of a text and the text. Its first line
// says whether the pod is one that validation allows; each other line is a reference.
func record(t *testing.T) []byte {
	t.Helper()
	g := &generator{rand.New(rand.NewPCG(1, 1))}
	serializer := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	encoder := scheme.Codecs.EncoderForVersion(serializer, corev1.SchemeGroupVersion)
	var out []byte
	add := func(part []byte) {
		out = append(binary.BigEndian.AppendUint32(out, uint32(len(part))), part...)
	}
	for i := range count {
		isValid := i%10 != 0
		pod := g.pod(i, isValid)
		var object bytes.Buffer
		must(t, encoder.Encode(pod, &object))
		add(object.Bytes())
		add(fmt.Appendf(nil, "%v\n%s", isValid, strings.Join(references(pod), "")))
	}
	return out
}

// references returns what Graph.AddPod of the Node authorizer finds.
func references(pod *corev1.Pod) []string {
	if _, isMirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; isMirror {
		return nil
	}
	var found []string
	visit := func(resource string) podutil.Visitor {
		return func(name string) bool {
			found = append(found, resource+"/"+name+"\n")
			return true
		}
	}
	podutil.VisitPodConfigmapNames(pod, visit("configmaps"))
	podutil.VisitPodSecretNames(pod, visit("secrets"))
	slices.Sort(found)
	return slices.Compact(found)
}

// generator makes random pods.
type generator struct{ *rand.Rand }

func (g *generator) pod(i int, isValid bool) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: fmt.Sprintf("p-%d", i), Namespace: "ns", ResourceVersion: fmt.Sprint(i + 1), UID: "u",
		Labels: map[string]string{"app": "a"}, Annotations: map[string]string{"a": "b"},
	}}
	if g.IntN(15) == 0 {
		pod.Annotations[corev1.MirrorPodAnnotationKey] = g.name()
	}
	g.fill(reflect.ValueOf(&pod.Spec).Elem(), 0)
	pod.Spec.NodeName = "node"
	pod.Spec.Volumes = make([]corev1.Volume, volumes)
	for i := range pod.Spec.Volumes {
		pod.Spec.Volumes[i].Name = g.name()
		g.choose(&pod.Spec.Volumes[i].VolumeSource, isValid)
	}
	return pod
}

// choose sets the source of a volume: one, as validation demands, or several.
func (g *generator) choose(source *corev1.VolumeSource, isValid bool) {
	*source = corev1.VolumeSource{}
	fields := reflect.ValueOf(source).Elem()
	for n := 0; n == 0 || !isValid && n < 3; n++ {
		field := fields.Field(g.IntN(fields.NumField()))
		field.Set(reflect.New(field.Type().Elem()))
		g.fill(field.Elem(), 2)
	}
}

// fill sets a value at random.
func (g *generator) fill(value reflect.Value, depth int) {
	switch value.Interface().(type) {
	case resource.Quantity, metav1.Time, intstr.IntOrString, corev1.VolumeSource:
		return
	}
	switch value.Kind() {
	case reflect.Pointer:
		if chance := g.IntN(100); chance < 15 || depth < shallow && chance < 60 {
			value.Set(reflect.New(value.Type().Elem()))
			g.fill(value.Elem(), depth+1)
		}
	case reflect.Slice:
		length := g.IntN(3)
		if depth > shallow {
			length = 0
		}
		value.Set(reflect.MakeSlice(value.Type(), length, length))
		for i := range length {
			g.fill(value.Index(i), depth+1)
		}
	case reflect.Map:
		value.Set(reflect.MakeMap(value.Type()))
		key, element := reflect.New(value.Type().Key()).Elem(), reflect.New(value.Type().Elem()).Elem()
		g.fill(key, depth+1)
		g.fill(element, depth+1)
		value.SetMapIndex(key, element)
	case reflect.Struct:
		for i := range value.NumField() {
			g.fill(value.Field(i), depth+1)
		}
	case reflect.String:
		value.SetString(g.name())
	case reflect.Bool:
		value.SetBool(g.IntN(2) == 0)
	case reflect.Int, reflect.Int32, reflect.Int64:
		value.SetInt(int64(g.IntN(1 << g.IntN(31))))
	case reflect.Uint8:
		value.SetUint(uint64(g.IntN(256)))
	default:
		panic(value.Type().String())
	}
}

// name returns a name of an object, or another text.
func (g *generator) name() string {
	switch g.IntN(20) {
	case 0:
		return ""
	case 1:
		return []string{"A", "a/b", ".", "..", "ä", strings.Repeat("a", 253), strings.Repeat("a", 254), "-"}[g.IntN(8)]
	}
	return fmt.Sprintf("n-%d.x", g.IntN(60))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
