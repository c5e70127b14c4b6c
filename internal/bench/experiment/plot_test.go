package experiment

import (
	"bytes"
	"testing"
)

func TestPlotsOfOddSeries(t *testing.T) {
	for name, points := range map[string][]Point{
		"one point":         {{10, 5}},
		"all the same":      {{1, 5}, {10, 5}, {100, 5}},
		"zeros":             {{0, 0}, {10, 0}},
		"tiny and huge":     {{1, 1e-9}, {1e7, 1e12}},
		"the same place":    {{10, 1}, {10, 2}},
		"from zero upwards": {{0, 0}, {1, 1}},
	} {
		for _, logarithmic := range []bool{false, true} {
			r := Result{
				Series:  []Series{{Plot: "p, on it", Name: "n", X: Seconds, Unit: "ms", LogX: logarithmic, LogY: logarithmic, Points: points}},
				Markers: []Marker{{Of: ", on it", Name: "now", Seconds: 5}, {Of: ", on another", Name: "never", Seconds: 5}},
			}
			plots, err := r.draw()
			if err != nil || len(plots) != 1 {
				t.Fatalf("%s: %v", name, err)
			}
			if svg := plots[0].SVG; !bytes.Contains(svg, []byte("<svg")) || !bytes.Contains(svg, []byte("now")) || bytes.Contains(svg, []byte("never")) {
				t.Errorf("%s, logarithmic %v: not the plot that was asked for", name, logarithmic)
			}
			if got := plots[0].fileName(); got != "p-on-it.svg" {
				t.Errorf("the file is %q", got)
			}
		}
	}
}
