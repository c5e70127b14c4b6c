// Package intern maps values that many nodes or pods share to small numbers. Values are identified by keys,
// which are byte strings: equal values have equal keys, and different values have different keys.
package intern

import (
	"encoding/binary"
	"fmt"
	"sort"

	v1 "k8s.io/api/core/v1"
)

// message is an API object that marshals itself to protobuf.
type message interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
}

// AppendMessage appends the protobuf encoding of an object with its length. Maps are encoded in the
// order of their keys.
func AppendMessage(key []byte, m message) []byte {
	size := m.Size()
	key = binary.AppendUvarint(key, uint64(size)+1)
	start := len(key)
	key = append(key, make([]byte, size)...)
	if _, err := m.MarshalToSizedBuffer(key[start:]); err != nil {
		panic(fmt.Sprintf("marshalling to memory: %v", err))
	}
	return key
}

// AppendScalars appends the extended resources that are not zero, sorted by name.
func AppendScalars(key []byte, scalars map[v1.ResourceName]int64) []byte {
	resources := make([]string, 0, len(scalars))
	for resource, amount := range scalars {
		if amount != 0 {
			resources = append(resources, string(resource))
		}
	}
	sort.Strings(resources)
	for _, resource := range resources {
		key = AppendString(key, resource)
		key = binary.AppendVarint(key, scalars[v1.ResourceName(resource)])
	}
	return append(key, 0)
}

// AppendString appends a string with its length. The encoding of an empty string differs from the 0 byte
// that ends a list.
func AppendString(key []byte, s string) []byte {
	key = binary.AppendUvarint(key, uint64(len(s))+1)
	return append(key, s...)
}

// AppendBool appends one byte.
func AppendBool(key []byte, yes bool) []byte {
	if yes {
		return append(key, 1)
	}
	return append(key, 0)
}

// AppendLabels appends labels, sorted by key.
func AppendLabels(key []byte, labels map[string]string) []byte {
	keys := make([]string, 0, len(labels))
	for label := range labels {
		keys = append(keys, label)
	}
	sort.Strings(keys)
	for _, label := range keys {
		key = AppendString(key, label)
		key = AppendString(key, labels[label])
	}
	return append(key, 0)
}
