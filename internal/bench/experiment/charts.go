package experiment

import (
	"fmt"
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/bench/chart"
)

// charts returns the charts of a result, in the order of the first series of each chart.
func (r *Result) charts() []*chart.LineChart {
	var charts []*chart.LineChart
	byTitle := map[string]*chart.LineChart{}
	for _, s := range r.Series {
		if len(s.Points) == 0 {
			continue
		}
		c := byTitle[s.Plot]
		if c == nil {
			c = &chart.LineChart{Title: s.Plot, XLabel: s.X, YLabel: s.Unit, LogX: s.LogX, LogY: s.LogY}
			if s.X == Seconds {
				c.Markers = r.markersOf(s.Plot)
			}
			byTitle[s.Plot], charts = c, append(charts, c)
		}
		c.Add(s.Name, s.Points)
	}
	return charts
}

// markersOf returns the markers of the contender whose suffix the title of a chart has.
func (r *Result) markersOf(title string) []chart.Marker {
	var markers []chart.Marker
	for _, m := range r.Markers {
		if strings.HasSuffix(title, m.ChartSuffix) {
			markers = append(markers, chart.Marker{Name: m.Name, X: m.Seconds})
		}
	}
	return markers
}

// svgFiles returns the SVG files of the charts by file name.
func svgFiles(charts []*chart.LineChart) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, c := range charts {
		svg, err := c.SVG()
		if err != nil {
			return nil, fmt.Errorf("drawing %s: %w", c.Title, err)
		}
		files[chart.FileName(c.Title)] = svg
	}
	return files, nil
}
