package chart

import (
	"bytes"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestPointsAreDrawnInTheOrderOfTheirXValues(t *testing.T) {
	measured := []Point{{5000, 2}, {10000, 3}, {7500, 4}}
	c := &LineChart{Title: "t"}
	c.Add("n", measured)
	want := []Point{{5000, 2}, {7500, 4}, {10000, 3}}
	if got := c.Lines[0].Segments[0]; !slices.Equal(got, want) {
		t.Errorf("the points are %v, want %v", got, want)
	}
	if measured[1][0] != 10000 {
		t.Error("Add sorted the caller's points")
	}
}

func TestPointsOfExistingLineBecomeASegment(t *testing.T) {
	c := &LineChart{Title: "t"}
	c.Add("n", []Point{{0, 1}})
	c.Add("n", []Point{{9, 1}})
	if len(c.Lines) != 1 || len(c.Lines[0].Segments) != 2 {
		t.Errorf("the lines are %+v, want one line with two segments", c.Lines)
	}
}

func TestSVGIsWideEnoughForItsLegend(t *testing.T) {
	width := func(name string) float64 {
		c := &LineChart{Title: "t"}
		c.Add(name, []Point{{0, 1}, {1, 2}})
		svg, err := c.SVG()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(svg, []byte(name)) {
			t.Errorf("the legend lacks %q", name)
		}
		found := regexp.MustCompile(`width="([0-9.]+)`).FindSubmatch(svg)
		points, err := strconv.ParseFloat(string(found[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		return points
	}
	short, long := width("kwok"), width("kube-controller-manager")
	if long-short < 80 {
		t.Errorf("the SVG is %.0f points wide with a long name and %.0f with a short name; want a difference of at least 80",
			long, short)
	}
}

func TestLargestValueDoesNotTouchTheFrame(t *testing.T) {
	for _, logarithmic := range []bool{false, true} {
		p := newPlot()
		p.Y.Min, p.Y.Max = 1, 100
		setRange(&p.Y, logarithmic, nil)
		if p.Y.Max < 105 {
			t.Errorf("logarithmic %v: the axis ends at %v, want at least 105", logarithmic, p.Y.Max)
		}
	}
}

func TestHTMLContainsScriptAndData(t *testing.T) {
	line := &LineChart{Title: "CPU </script>"}
	line.Add("n", []Point{{0, 1}})
	bars := &BarChart{Title: "ratios", Bars: []Bar{{Name: "put", Value: 2, Good: true}}}
	html, err := HTML(line, bars)
	if err != nil {
		t.Fatal(err)
	}
	if page := string(html); strings.Count(page, echarts) != 1 || strings.Count(page, `class="chart"`) != 2 || strings.Contains(page, "CPU </script>") {
		t.Error("the page has no script, lacks a chart, or has a title that ends the script")
	}
	if none, err := HTML(); err != nil || none != "" {
		t.Errorf("HTML without charts returned %d bytes, %v", len(none), err)
	}
}

func TestBarChartContainsNames(t *testing.T) {
	c := &BarChart{Title: "ratios", XLabel: "times", Reference: 1, Bars: []Bar{{Name: "put", Value: 2, Good: true, Target: 3}, {Name: "watch", Value: 0.5}}}
	svg, err := c.SVG()
	if err != nil || !bytes.Contains(svg, []byte("put")) || !bytes.Contains(svg, []byte("watch")) {
		t.Errorf("the SVG lacks a name of a bar, or SVG returned an error: %v", err)
	}
}
