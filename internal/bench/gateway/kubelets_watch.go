package gateway

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	// A reflector of client-go ends a watch after a random time between these, in seconds.
	leastWatchSeconds = 300
	mostWatchSeconds  = 600
	// maxEventBytes bounds an event. Objects in the store have at most 1.5 MiB.
	maxEventBytes = 4 << 20
	// keptBytes is the largest buffer of a watch that is kept for its next event.
	keptBytes = 4 << 10
)

// kubeletResource is a resource that a kubelet watches.
type kubeletResource struct {
	path string
	// selector is the field selector, in which %s is the name of the node.
	selector string
}

// kubeletResources are the resources that a kubelet of Kubernetes 1.37 watches (pkg/kubelet/kubelet.go and
// config/apiserver.go), without the ConfigMaps and Secrets of its pods.
var kubeletResources = [...]kubeletResource{
	{"/api/v1/pods", "spec.nodeName=%s"},
	{"/api/v1/nodes", "metadata.name=%s"},
	{"/api/v1/services", "spec.clusterIP!=None"},
	{"/apis/storage.k8s.io/v1/csidrivers", ""},
	{"/apis/node.k8s.io/v1/runtimeclasses", ""},
	{"/apis/certificates.k8s.io/v1/podcertificaterequests", "spec.nodeName=%s"},
}

// ownNode returns the path with which a kubelet reads its Node.
func ownNode(node string) string { return "/api/v1/nodes/" + node + "?resourceVersion=0&timeout=10s" }

// watch returns the path with which the informer of a kubelet watches the resource. before is how far it has watched.
func (r kubeletResource) watch(node string, before watched, seconds int) string {
	values := url.Values{}
	values.Set("watch", "true")
	values.Set("allowWatchBookmarks", "true")
	values.Set("timeoutSeconds", strconv.Itoa(seconds))
	values.Set("timeout", fmt.Sprintf("%dm%ds", seconds/60, seconds%60))
	if r.selector != "" {
		values.Set("fieldSelector", strings.ReplaceAll(r.selector, "%s", node))
	}
	if before.version != "" {
		values.Set("resourceVersion", before.version)
	}
	if !before.synced {
		values.Set("sendInitialEvents", "true")
		values.Set("resourceVersionMatch", string(metav1.ResourceVersionMatchNotOlderThan))
	}
	return r.path + "?" + values.Encode()
}

// watchSeconds returns the time limit of a watch.
func watchSeconds() int {
	return leastWatchSeconds + rand.IntN(mostWatchSeconds-leastWatchSeconds)
}

// eventSplitter splits the body of a watch in protobuf into events. An event is preceded by its length in four bytes.
type eventSplitter struct{ pending []byte }

// split calls each with the events that end in a part of the body. An event is valid only during the call.
func (e *eventSplitter) split(part []byte, each func(event []byte) error) error {
	rest := part
	if len(e.pending) > 0 {
		e.pending = append(e.pending, part...)
		rest = e.pending
	}
	const prefix = 4
	for len(rest) >= prefix {
		length := binary.BigEndian.Uint32(rest)
		if length > maxEventBytes {
			return fmt.Errorf("an event has %d bytes, at most %d are expected", length, maxEventBytes)
		}
		end := prefix + int(length)
		if len(rest) < end {
			break
		}
		if err := each(rest[prefix:end]); err != nil {
			return err
		}
		rest = rest[end:]
	}
	if len(rest) == 0 && cap(e.pending) > keptBytes {
		e.pending = nil
	} else {
		e.pending = append(e.pending[:0], rest...)
	}
	return nil
}

// eventType returns the type of an event, which is the first field of its message; "" if it is not.
func eventType(event []byte) watch.EventType {
	const firstField = 1<<3 | 2 // the number of the field, and the wire type of a text
	if len(event) < 2 || event[0] != firstField || len(event) < 2+int(event[1]) {
		return ""
	}
	return watch.EventType(event[2 : 2+int(event[1])])
}

// decodeEvent returns the object of an event.
func decodeEvent(event []byte) (runtime.Object, error) {
	var message metav1.WatchEvent
	if err := message.Unmarshal(event); err != nil {
		return nil, fmt.Errorf("decoding an event: %w", err)
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(message.Object.Raw, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("decoding the object of an event: %w", err)
	}
	return object, nil
}

// bookmark returns the version of a bookmark, and whether it ends the state with which a watch begins.
func bookmark(event []byte) (version string, endsState bool, err error) {
	object, err := decodeEvent(event)
	if err != nil {
		return "", false, err
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return "", false, fmt.Errorf("reading a bookmark: %w", err)
	}
	return accessor.GetResourceVersion(), accessor.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true", nil
}

// eventStatus returns the status code of the error with which a watch ends.
func eventStatus(event []byte) (int, error) {
	object, err := decodeEvent(event)
	if err != nil {
		return 0, err
	}
	status, ok := object.(*metav1.Status)
	if !ok {
		return 0, fmt.Errorf("the error of a watch is a %T", object)
	}
	return int(status.Code), nil
}
