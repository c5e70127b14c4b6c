// Package number formats numbers for tables, charts and messages.
package number

import (
	"fmt"
	"math"
)

// maxFinite is the largest value that is formatted as a number; larger ones are "unlimited".
const maxFinite = 1e15

// Text formats a number. Integers, and numbers of at least 99.95, have no decimals; other numbers have
// three significant digits. Numbers of at least 10,000 have thousands separators.
func Text(value float64) string {
	switch size := max(value, -value); {
	case size > maxFinite:
		return "unlimited"
	case value < 0:
		return "-" + Text(-value)
	case size < 99.95 && value != float64(int64(value)):
		return fmt.Sprintf("%.3g", value)
	}
	text := fmt.Sprintf("%.0f", value)
	if len(text) < len("10000") {
		return text
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// TwoDigits rounds a non-negative number to an integer with at most two significant digits: 8,755
// becomes 8,800.
func TwoDigits(count float64) int {
	unit := math.Pow(10, max(0, math.Floor(math.Log10(count))-1))
	return int(math.Round(count/unit) * unit)
}
