package inmemory

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/pushinformer"
)

// newClient returns a client of a server in this process.
func newClient(server *apiServer) kubernetes.Interface {
	client, err := kubernetes.NewForConfigAndClient(&rest.Config{QPS: -1}, &http.Client{Transport: server})
	if err != nil {
		panic(err) // the configuration is a constant
	}
	return client
}

// apiServer is a transport that answers all requests of a scheduler. The scheduler updates volume claims, whose volumes the server
// then creates, and resource claims, which the server keeps. It also sends status updates of unschedulable pods, which have no
// effect.
type apiServer struct {
	// volumes and volumeClaims are the stores of the scheduler's informers.
	volumes, volumeClaims cache.Indexer
	mu                    sync.Mutex
	// claims are the resource claims that the scheduler has updated, by name.
	claims map[string]*resourcev1.ResourceClaim
}

// RoundTrip implements http.RoundTripper.
func (s *apiServer) RoundTrip(request *http.Request) (*http.Response, error) {
	answer := []byte(`{"kind":"Pod","apiVersion":"v1"}`)
	if request.Method == http.MethodPut && request.Body != nil {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, err
		}
		object, kind, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("decoding a %s request to %s: %w", request.Method, request.URL.Path, err)
		}
		if err := s.update(object); err != nil {
			return nil, err
		}
		var encoded bytes.Buffer
		if err := scheme.Codecs.LegacyCodec(kind.GroupVersion()).Encode(object, &encoded); err != nil {
			return nil, err
		}
		answer = encoded.Bytes()
	}
	return &http.Response{
		StatusCode: http.StatusOK, Request: request, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(string(answer))),
	}, nil
}

// update stores an object that the scheduler has updated, and gives it a new version.
func (s *apiServer) update(object runtime.Object) error {
	switch object := object.(type) {
	case *v1.PersistentVolumeClaim:
		object.ResourceVersion = nextVersion(object.ResourceVersion)
		bound := object.DeepCopy()
		bound.ResourceVersion = nextVersion(bound.ResourceVersion)
		if err := s.volumes.Add(bindClaim(bound, "")); err != nil {
			return err
		}
		return s.volumeClaims.Update(bound)
	case *resourcev1.ResourceClaim:
		object.ResourceVersion = nextVersion(object.ResourceVersion)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.claims[object.Name] = object.DeepCopy()
	}
	return nil
}

// nextVersion returns the resource version after a given one.
func nextVersion(version string) string {
	number, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		return "2"
	}
	return strconv.FormatInt(number+1, 10)
}

// allocate makes informers know the allocation of the resource claim of a pod, if it has one.
func (s *apiServer) allocate(factory informers.SharedInformerFactory, name string) error {
	s.mu.Lock()
	claim := s.claims[name]
	s.mu.Unlock()
	if claim == nil {
		return nil
	}
	return pushinformer.Push(factory, claim)
}

// newInformers returns informers that do not run. Objects for which the scheduler needs events are pushed.
func newInformers(client kubernetes.Interface) informers.SharedInformerFactory {
	factory := informers.NewSharedInformerFactory(client, 0)
	pushinformer.Register(factory, &storagev1.CSINode{}, &resourcev1.DeviceClass{}, &resourcev1.ResourceSlice{}, &resourcev1.ResourceClaim{})
	return factory
}
