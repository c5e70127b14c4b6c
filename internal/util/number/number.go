// Package number writes numbers for people, everywhere in the same way.
package number

import (
	"fmt"
	"math"
)

// endless is more of anything than there is.
const endless = 1e15

// Text is a number with as many digits as it is worth: three, or all before the point, with
// separators from 10,000 on.
func Text(value float64) string {
	switch size := max(value, -value); {
	case size > endless:
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

// TwoDigits is a count, not negative, that says no more than it must: 8,755 is 8,800, and 87 is 87.
func TwoDigits(count float64) int {
	unit := math.Pow(10, max(0, math.Floor(math.Log10(count))-1))
	return int(math.Round(count/unit) * unit)
}
