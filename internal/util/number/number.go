// Package number formats numbers for output.
package number

import (
	"fmt"
	"math"
)

// maxFinite is the largest number that is printed; larger ones are printed as "endless".
const maxFinite = 1e15

// Text formats a number with three significant digits, or all digits before the decimal
// point, and with thousands separators from 10,000 on.
func Text(value float64) string {
	switch size := max(value, -value); {
	case size > maxFinite:
		return "endless"
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

// TwoDigits rounds a count, which must not be negative, to two significant digits: 8,755 to
// 8,800, and 87 to 87.
func TwoDigits(count float64) int {
	unit := math.Pow(10, max(0, math.Floor(math.Log10(count))-1))
	return int(math.Round(count/unit) * unit)
}
