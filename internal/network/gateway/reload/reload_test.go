package reload

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// Each series of errors is reported once.
func TestErrorsAreReportedOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	one, other := errors.New("one"), errors.New("other")
	results := []error{nil, one, other, nil, other, other}
	var reported []error
	Every(ctx, time.Millisecond, func() error {
		result := results[0]
		if results = results[1:]; len(results) == 0 {
			cancel()
			results = []error{other}
		}
		return result
	}, func(err error) { reported = append(reported, err) })
	if !slices.Equal(reported, []error{one, other}) {
		t.Errorf("reported %v", reported)
	}
}
