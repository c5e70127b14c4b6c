// Package usage marks errors in the user's input, for which k1m exits with code 2.
package usage

import (
	"errors"
	"fmt"
)

// Err is wrapped by all errors of this package.
var Err = errors.New("bad usage")

// Errorf returns a usage error with a formatted text, without a prefix.
func Errorf(format string, args ...any) error {
	return &mistake{fmt.Sprintf(format, args...)}
}

// mistake is a usage error.
type mistake struct{ text string }

func (m *mistake) Error() string { return m.text }
func (m *mistake) Unwrap() error { return Err }
