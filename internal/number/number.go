// Package number writes numbers for people, everywhere in the same way.
package number

import "fmt"

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
