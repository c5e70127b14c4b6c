package number

import (
	"math"
	"testing"
)

func TestTextFormatsThreeSignificantDigits(t *testing.T) {
	for want, value := range map[string]float64{
		"0": 0, "0.0123": 0.01234, "0.1": 0.1, "4": 4, "12.3": 12.34, "123": 123.4, "100": 99.96, "-20.5": -20.51,
		"1000": 1000, "9999": 9999, "12,345": 12345, "1,234,568": 1234567.8, "-10,000": -10000, "unlimited": math.Inf(1),
	} {
		if got := Text(value); got != want {
			t.Errorf("Text(%v) = %q, want %q", value, got, want)
		}
	}
}

func TestTwoDigitsRoundsToTwoSignificantDigits(t *testing.T) {
	for count, want := range map[float64]int{0: 0, 0.4: 0, 8.5: 9, 87: 87, 99.6: 100, 125: 130, 8755: 8800, 1e7: 1e7, 99_600: 100_000} {
		if got := TwoDigits(count); got != want {
			t.Errorf("TwoDigits(%v) = %d, want %d", count, got, want)
		}
	}
}
