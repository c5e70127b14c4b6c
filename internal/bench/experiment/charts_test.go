package experiment

import (
	"bytes"
	"maps"
	"slices"
	"testing"
)

// TestChartsOfUnusualSeries draws series that make axes difficult: with one point, equal values or
// zeros, on linear and logarithmic axes. A chart has only the markers of its own plot.
func TestChartsOfUnusualSeries(t *testing.T) {
	for name, points := range map[string][]Point{
		"one point":      {{10, 5}},
		"equal Y values": {{1, 5}, {10, 5}, {100, 5}},
		"zeros":          {{0, 0}, {10, 0}},
		"tiny and huge":  {{1, 1e-9}, {1e7, 1e12}},
		"equal X values": {{10, 1}, {10, 2}},
		"from zero":      {{0, 0}, {1, 1}},
	} {
		for _, logarithmic := range []bool{false, true} {
			r := Result{
				Series:  []Series{{Plot: "p, on it", Name: "n", X: Seconds, Unit: "ms", LogX: logarithmic, LogY: logarithmic, Points: points}},
				Markers: []Marker{{Of: ", on it", Name: "own-marker", Seconds: 5}, {Of: ", on another", Name: "other-marker", Seconds: 5}},
			}
			charts := r.charts()
			if len(charts) != 1 {
				t.Fatalf("%s: charts() = %d charts, want 1", name, len(charts))
			}
			files, err := pictures(charts)
			if err != nil {
				t.Fatalf("%s: pictures() = %v, want nil", name, err)
			}
			svg, found := files["p-on-it.svg"]
			if !found {
				t.Fatalf("%s: pictures() = files %q, want p-on-it.svg", name, slices.Collect(maps.Keys(files)))
			}
			if !bytes.Contains(svg, []byte("<svg")) || !bytes.Contains(svg, []byte("own-marker")) || bytes.Contains(svg, []byte("other-marker")) {
				t.Errorf("%s, logarithmic %v: the SVG lacks its marker or has the marker of another chart", name, logarithmic)
			}
		}
	}
}
