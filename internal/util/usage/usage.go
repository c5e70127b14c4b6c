// Package usage marks errors that are the user's: k1m then exits with 2.
package usage

import (
	"errors"
	"fmt"
)

// Err is what every error made here wraps.
var Err = errors.New("bad usage")

// Errorf makes such an error. Its text is what the user reads, without prefix.
func Errorf(format string, args ...any) error {
	return &mistake{fmt.Sprintf(format, args...)}
}

type mistake struct{ text string }

func (m *mistake) Error() string { return m.text }
func (m *mistake) Unwrap() error { return Err }
