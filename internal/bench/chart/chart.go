// Package chart draws the charts of benchmark results. From the same data it draws two forms: a static SVG
// (gonum/plot) for the repository, and an interactive chart (Apache ECharts) for the HTML page of a result.
// The interactive chart shows values at the pointer, can be zoomed, and its legend hides or shows lines.
//
// A page with charts is a single file that works offline, because it contains the ECharts script. The script
// is version 6.1.0 from the npm package `echarts` (dist/echarts.min.js, Apache License 2.0), without changes.
// It is stored in assets/, with its LICENSE and NOTICE, because no Go module contains it, and because the
// build must need no other tools than Go.
package chart

import (
	"cmp"
	"slices"
	"strings"
)

// Chart is a chart that can be drawn in both forms: a *LineChart or a *BarChart.
type Chart interface {
	// Heading is the title of the chart.
	Heading() string
	// SVG draws the static form.
	SVG() ([]byte, error)
}

// Point is an X and a Y value.
type Point [2]float64

// Line is one named line of a LineChart. Its segments have the same color and are not connected.
type Line struct {
	Name     string    `json:"name"`
	Segments [][]Point `json:"segments"`
}

// Marker is a named vertical line at an X value.
type Marker struct {
	Name string  `json:"name"`
	X    float64 `json:"x"`
}

// LineChart shows lines over a common X axis.
type LineChart struct {
	Title string `json:"title"`
	// XLabel and YLabel are the titles of the axes.
	XLabel string `json:"xLabel"`
	YLabel string `json:"yLabel"`
	// LogX and LogY select logarithmic axes. On such an axis, values below 0.001 are drawn as 0.001.
	LogX    bool     `json:"logX"`
	LogY    bool     `json:"logY"`
	Lines   []Line   `json:"lines"`
	Markers []Marker `json:"markers"`
}

// smallestLogValue replaces smaller values on a logarithmic axis, which cannot show zero.
const smallestLogValue = 1e-3

// Heading is the title of the chart.
func (c *LineChart) Heading() string { return c.Title }

// Add adds a line with these points, sorted by their X values. If the chart already has a line with this name,
// the points become another segment of that line.
func (c *LineChart) Add(name string, points []Point) {
	if len(points) == 0 {
		return
	}
	segment := slices.Clone(points)
	for i := range segment {
		if c.LogX {
			segment[i][0] = max(segment[i][0], smallestLogValue)
		}
		if c.LogY {
			segment[i][1] = max(segment[i][1], smallestLogValue)
		}
	}
	slices.SortStableFunc(segment, func(a, b Point) int { return cmp.Compare(a[0], b[0]) })
	for i := range c.Lines {
		if c.Lines[i].Name == name {
			c.Lines[i].Segments = append(c.Lines[i].Segments, segment)
			return
		}
	}
	c.Lines = append(c.Lines, Line{Name: name, Segments: [][]Point{segment}})
}

// Bar is one bar of a BarChart.
type Bar struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	// Good is true if the bar meets its limit. It selects the color.
	Good bool `json:"good"`
	// Target is drawn as a cross in the row of the bar; 0 means that there is no target.
	Target float64 `json:"target,omitempty"`
}

// BarChart shows horizontal bars, the first on top, and a vertical reference line.
type BarChart struct {
	Title string `json:"title"`
	// XLabel is the title of the value axis.
	XLabel string `json:"xLabel"`
	// Reference is the value of the vertical line.
	Reference float64 `json:"reference"`
	Bars      []Bar   `json:"bars"`
}

// Heading is the title of the chart.
func (c *BarChart) Heading() string { return c.Title }

// FileName returns the name of the SVG file of a chart with this title, such as pods-per-second.svg.
func FileName(title string) string {
	words := strings.FieldsFunc(strings.ToLower(title), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
	return strings.Join(words, "-") + ".svg"
}
