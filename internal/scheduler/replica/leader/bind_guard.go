package leader

import (
	"errors"
	"net/http"
	"regexp"
	"sync/atomic"

	toolscache "k8s.io/client-go/tools/cache"
)

// BindGuard checks each bind once more just before it is sent to the API server. client-go's rate limiter delays
// requests after the check in [Assumptions.Bind]; meanwhile this process may have been suspended and another
// replica may have become the leader.
type BindGuard struct {
	check atomic.Pointer[func(toolscache.ObjectName) error]
}

// bindPath is the path of the request that binds a pod.
var bindPath = regexp.MustCompile(`/api/v1/namespaces/([^/]+)/pods/([^/]+)/binding$`)

// SetCheck sets the check. Until then, binds are refused.
func (g *BindGuard) SetCheck(check func(pod toolscache.ObjectName) error) { g.check.Store(&check) }

// Wrap returns a transport that refuses the binds that the check refuses. It is called after the rate limiter.
func (g *BindGuard) Wrap(inner http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		if err := g.allow(request); err != nil {
			if request.Body != nil {
				_ = request.Body.Close()
			}
			return nil, err
		}
		return inner.RoundTrip(request)
	})
}

// allow returns an error if the request is a bind that must not be sent.
func (g *BindGuard) allow(request *http.Request) error {
	match := bindPath.FindStringSubmatch(request.URL.Path)
	if request.Method != http.MethodPost || match == nil {
		return nil
	}
	check := g.check.Load()
	if check == nil {
		return errors.New("this replica does not schedule pods yet")
	}
	return (*check)(toolscache.ObjectName{Namespace: match[1], Name: match[2]})
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip sends a request.
func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }
