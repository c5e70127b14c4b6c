package peerproxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// Path is the path at which the supervisor cuts members off: POST with the parameters member and for.
const Path = "/store/partition"

const requestTimeout = 10 * time.Second

// Handler returns a handler for [Path].
func (p *Proxy) Handler(settings clusterdir.Settings) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		member := r.FormValue("member")
		duration, err := time.ParseDuration(r.FormValue("for"))
		switch {
		case r.Method != http.MethodPost:
			http.Error(w, "only POST is supported", http.StatusMethodNotAllowed)
		case err != nil || duration < 0:
			http.Error(w, fmt.Sprintf("for=%q: not a duration of 0 or more, such as 30s", r.FormValue("for")), http.StatusBadRequest)
		case !slices.Contains(settings.StoreMembers(clusterdir.MainStore), member):
			http.Error(w, fmt.Sprintf("member=%q: no such member of the store", member), http.StatusBadRequest)
		default:
			p.Cut(member, duration)
		}
	})
}

// Request asks the supervisor at a URL to cut a member off for some time; 0 ends it.
func Request(ctx context.Context, supervisor, member string, duration time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	query := url.Values{"member": {member}, "for": {duration.String()}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, supervisor+Path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("asking the supervisor to cut %s off: %w", member, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the supervisor refused to cut %s off: %s", member, strings.TrimSpace(string(text)))
	}
	return nil
}
