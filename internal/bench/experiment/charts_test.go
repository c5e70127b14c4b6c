package experiment

import (
	"bytes"
	"testing"
)

func TestChartsOfUnusualSeries(t *testing.T) {
	for name, points := range map[string][]Point{
		"one point":        {{10, 5}},
		"constant":         {{1, 5}, {10, 5}, {100, 5}},
		"zeros":            {{0, 0}, {10, 0}},
		"tiny and huge":    {{1, 1e-9}, {1e7, 1e12}},
		"equal X":          {{10, 1}, {10, 2}},
		"starting at zero": {{0, 0}, {1, 1}},
	} {
		for _, logarithmic := range []bool{false, true} {
			r := Result{
				Series:  []Series{{Plot: "p, on it", Name: "n", X: Seconds, Unit: "ms", LogX: logarithmic, LogY: logarithmic, Points: points}},
				Markers: []Marker{{ChartSuffix: ", on it", Name: "now", Seconds: 5}, {ChartSuffix: ", on another", Name: "never", Seconds: 5}},
			}
			charts := r.charts()
			if len(charts) != 1 {
				t.Fatalf("%s: the result has %d charts; want 1", name, len(charts))
			}
			files, err := svgFiles(charts)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			svg, found := files["p-on-it.svg"]
			if !found {
				t.Fatalf("%s: the files are %v; want p-on-it.svg", name, files)
			}
			if !bytes.Contains(svg, []byte("<svg")) || !bytes.Contains(svg, []byte("now")) || bytes.Contains(svg, []byte("never")) {
				t.Errorf("%s, logarithmic %v: the SVG lacks its marker or has the marker of another chart",
					name, logarithmic)
			}
		}
	}
}
