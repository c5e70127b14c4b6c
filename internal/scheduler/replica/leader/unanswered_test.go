package leader

import (
	"errors"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestWhichBindsAreUnanswered has binds fail, some of them after an earlier attempt of client-go.
func TestWhichBindsAreUnanswered(t *testing.T) {
	pods := v1.Resource("pods")
	for name, test := range map[string]struct {
		err  error
		sent bool
		want bool
	}{
		"connection":                      {errors.New("connection reset by peer"), true, true},
		"stopped by the guard":            {fmt.Errorf("post: %w", errNotSent), false, false},
		"stopped by the guard, sent once": {fmt.Errorf("post: %w", errNotSent), true, true},
		"conflict":                        {apierrors.NewConflict(pods, "pod", errors.New("already assigned")), true, true},
		"internal error":                  {apierrors.NewInternalError(errors.New("store")), true, true},
		"forbidden":                       {apierrors.NewForbidden(pods, "pod", errors.New("no")), true, false},
		"not found":                       {apierrors.NewNotFound(pods, "pod"), true, false},
		"too many requests":               {apierrors.NewTooManyRequests("later", 1), true, false},
	} {
		if got := isUnanswered(test.err, test.sent); got != test.want {
			t.Errorf("%s: isUnanswered(%v, %t) = %t, want %t", name, test.err, test.sent, got, test.want)
		}
	}
}
