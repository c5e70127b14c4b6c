package experiment

import (
	"bytes"
	"testing"
)

func TestChartsOfUnusualSeries(t *testing.T) {
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
			charts := r.charts()
			if len(charts) != 1 {
				t.Fatalf("%s: %d charts", name, len(charts))
			}
			files, err := pictures(charts)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			svg, found := files["p-on-it.svg"]
			if !found {
				t.Fatalf("%s: the files are %v", name, files)
			}
			if !bytes.Contains(svg, []byte("<svg")) || !bytes.Contains(svg, []byte("now")) || bytes.Contains(svg, []byte("never")) {
				t.Errorf("%s, logarithmic %v: the SVG lacks its marker or has the marker of another chart", name, logarithmic)
			}
		}
	}
}
