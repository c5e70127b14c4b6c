package controlplane

import (
	"cmp"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// positive returns a usage error unless the value is positive.
func positive[T cmp.Ordered](flag string, value T) error {
	var zero T
	if value <= zero {
		return usage.Errorf("%s %v: must be more than 0", flag, value)
	}
	return nil
}
