package clusterfile

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// encryptedPrefix begins the values that kube-apiserver has encrypted.
var encryptedPrefix = []byte("k8s:enc:")

// maxStoredBytes limits the sum of the values of a store that are kept.
const maxStoredBytes = 32 << 30

// storedValues has the current values of the keys of a store whose objects schedulers read.
type storedValues struct {
	values map[string][]byte
	bytes  int64
}

func newStoredValues() *storedValues { return &storedValues{values: map[string][]byte{}} }

// put sets the value of a key. It copies the value.
func (s *storedValues) put(key string, value []byte) error {
	if !isWanted(key) {
		return nil
	}
	s.bytes += int64(len(value)) - int64(len(s.values[key]))
	if s.bytes > maxStoredBytes {
		return fmt.Errorf("its objects are larger than %d GiB", maxStoredBytes>>30)
	}
	s.values[key] = bytes.Clone(value)
	return nil
}

// remove removes a key.
func (s *storedValues) remove(key string) {
	s.bytes -= int64(len(s.values[key]))
	delete(s.values, key)
}

// removeSpan removes all keys from first up to end, as the range of a request of etcd.
func (s *storedValues) removeSpan(first, end string) {
	for key := range s.values {
		inside := key == first
		switch end {
		case "":
		case "\x00":
			inside = key >= first
		default:
			inside = key >= first && key < end
		}
		if inside {
			s.remove(key)
		}
	}
}

// isWanted returns whether a key has an object that schedulers read. The first segment is the prefix of
// kube-apiserver's --etcd-prefix.
func isWanted(key string) bool {
	_, path, found := strings.Cut(strings.TrimPrefix(key, "/"), "/")
	if !found {
		return false
	}
	for i := range kinds {
		if strings.HasPrefix(path, kinds[i].storage) && strings.HasPrefix(path[len(kinds[i].storage):], "/") {
			return true
		}
	}
	return false
}

// addTo decodes all values, in the order of their keys, and adds the objects.
func (s *storedValues) addTo(objects *Objects, source string) error {
	for _, key := range slices.Sorted(maps.Keys(s.values)) {
		object, err := decodeStored(s.values[key])
		if err != nil {
			return fmt.Errorf("%s: key %q: %w", source, shorten(key), err)
		}
		s.remove(key)
		if err := objects.Add(object, source); err != nil {
			return err
		}
	}
	return nil
}

// decodeStored decodes a value as kube-apiserver stores it: protobuf or JSON.
func decodeStored(value []byte) (runtime.Object, error) {
	if bytes.HasPrefix(value, encryptedPrefix) {
		return nil, fmt.Errorf("the value is encrypted by kube-apiserver; use the output of `kubectl get %s -A -o json`", Resources())
	}
	object, err := decodeSafely(lenient, value, &schema.GroupVersionKind{})
	if err != nil {
		return nil, fmt.Errorf("decoding the value: %w", firstLine(err))
	}
	if k := kindOf(object); k == nil {
		gvk := object.GetObjectKind().GroupVersionKind()
		return nil, fmt.Errorf("the value is stored as %s %s, which is not supported; use the output of `kubectl get -A -o json`", shorten(gvk.GroupVersion().String()), shorten(gvk.Kind))
	}
	return object, nil
}
