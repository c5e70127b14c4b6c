package bulk

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

// ErrTemplate says that a file is not the template that it should be.
var ErrTemplate = errors.New("bad template")

// ReadNode reads a Node from a YAML or JSON file; unknown fields are errors.
func ReadNode(path string) (*corev1.Node, error) { return read[*corev1.Node](path, "Node") }

// ReadPod reads a Pod as ReadNode reads a Node.
func ReadPod(path string) (*corev1.Pod, error) { return read[*corev1.Pod](path, "Pod") }

func read[T runtime.Object](path, kind string) (T, error) {
	var none T
	content, err := os.ReadFile(path)
	if err != nil {
		return none, fmt.Errorf("%w: %w; give --template a file that can be read", ErrTemplate, err)
	}
	document, err := onlyDocument(content)
	if err != nil {
		return none, fmt.Errorf("%w: %s: %w", ErrTemplate, path, err)
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	object, gvk, err := decoder.Decode(document, nil, nil)
	if err != nil {
		return none, fmt.Errorf("%w: %s is not a valid %s: %w", ErrTemplate, path, kind, err)
	}
	typed, ok := object.(T)
	if !ok {
		return none, fmt.Errorf("%w: %s holds a %s, not a %s; write one with `kind: %s`", ErrTemplate, path, gvk.Kind, kind, kind)
	}
	return typed, nil
}

// onlyDocument refuses a file of several: all but one would be ignored.
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
			return nil, errors.New("holds several documents; leave one")
		}
		only = document
	}
	if only == nil {
		return nil, errors.New("is empty")
	}
	return only, nil
}
