// Package usage defines usage errors: errors that are caused by the use of a command, such as invalid
// flags. Commands exit with code 2 on a usage error.
package usage

import (
	"errors"
	"fmt"
)

// Err is the error that all usage errors wrap.
var Err = errors.New("bad usage")

// Errorf returns a usage error. Its text does not contain the text of Err.
func Errorf(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

type usageError struct{ text string }

func (m *usageError) Error() string { return m.text }
func (m *usageError) Unwrap() error { return Err }
