package bulk

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// ReadNode reads a Node from a YAML or JSON file. Unknown fields are errors.
func ReadNode(path string) (*corev1.Node, error) { return read[*corev1.Node](path, "Node") }

// ReadPod reads a Pod from a YAML or JSON file. Unknown fields are errors.
func ReadPod(path string) (*corev1.Pod, error) { return read[*corev1.Pod](path, "Pod") }

// read reads an object of a kind from a file. Its errors are usage errors of --template.
func read[T runtime.Object](path, kind string) (T, error) {
	var none T
	content, err := os.ReadFile(path)
	if err != nil {
		var reason *fs.PathError
		if errors.As(err, &reason) {
			err = reason.Err
		}
		return none, usage.Errorf("--template %s: %v; specify a readable file", path, err)
	}
	document, err := onlyDocument(content)
	if err != nil {
		return none, usage.Errorf("--template %s: %v; the file must contain one %s", path, err, kind)
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	object, gvk, err := decoder.Decode(document, nil, nil)
	if err != nil {
		return none, usage.Errorf("--template %s: not a valid %s: %v; correct the file", path, kind, err)
	}
	typed, ok := object.(T)
	if !ok {
		return none, usage.Errorf("--template %s: contains a %s, not a %s; use a manifest with `kind: %s`", path, gvk.Kind, kind, kind)
	}
	return typed, nil
}

// onlyDocument returns the document of a YAML file. It returns an error if the file contains several
// documents, because only one would be used.
func onlyDocument(content []byte) ([]byte, error) {
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	var only []byte
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		if only != nil {
			return nil, errors.New("contains several documents")
		}
		only = document
	}
	if only == nil {
		return nil, errors.New("is empty")
	}
	return only, nil
}
