package offline

import (
	"errors"
	"fmt"
	"net/http"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// ErrNoCluster is the error of every request that a plugin sends: nothing may be written, and all objects are in memory.
var ErrNoCluster = errors.New("requests to an API server are not possible here")

// refusingTransport answers no request.
type refusingTransport struct{}

// RoundTrip returns [ErrNoCluster].
func (refusingTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	return nil, fmt.Errorf("%w: %s %s", ErrNoCluster, request.Method, request.URL.Path)
}

// newClient returns a client that cannot send a request.
func newClient() (kubernetes.Interface, error) {
	return kubernetes.NewForConfigAndClient(&rest.Config{QPS: -1}, &http.Client{Transport: refusingTransport{}})
}
