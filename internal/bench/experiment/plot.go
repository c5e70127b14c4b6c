package experiment

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/k8s-1m/k8s-1m/internal/util/number"
)

const (
	plotWidth, plotHeight = 26 * vg.Centimeter, 9 * vg.Centimeter
	legendWidth           = 6 * vg.Centimeter
	// What is zero has no place on a logarithmic axis.
	leastShown = 1e-3
	// With fewer points than this each of them is drawn.
	fewPoints = 30
)

var colors = []color.Color{
	color.RGBA{R: 0x32, G: 0x6c, B: 0xe5, A: 0xff}, color.RGBA{R: 0xb0, G: 0x00, B: 0x20, A: 0xff},
	color.RGBA{R: 0x1b, G: 0x8a, B: 0x3a, A: 0xff}, color.RGBA{R: 0xc7, G: 0x7c, B: 0x02, A: 0xff},
	color.RGBA{R: 0x7b, G: 0x2c, B: 0xbf, A: 0xff}, color.RGBA{R: 0x00, G: 0x8b, B: 0x9a, A: 0xff},
	color.RGBA{R: 0x8a, G: 0x5a, B: 0x44, A: 0xff}, color.RGBA{R: 0x66, G: 0x66, B: 0x66, A: 0xff},
}

// Of markers: the first is green, the last red.
var markerColors = []color.Color{
	color.RGBA{R: 0x00, G: 0x90, B: 0x00, A: 0xff}, color.RGBA{R: 0xd0, G: 0x00, B: 0x00, A: 0xff},
}

// drawn is a plot as SVG.
type drawn struct {
	Title string
	SVG   []byte
}

// draw makes all plots of a result, in the order in which they first appear.
func (r *Result) draw() ([]drawn, error) {
	var titles []string
	byTitle := map[string][]Series{}
	for _, s := range r.Series {
		if len(s.Points) == 0 {
			continue
		}
		if byTitle[s.Plot] == nil {
			titles = append(titles, s.Plot)
		}
		byTitle[s.Plot] = append(byTitle[s.Plot], s)
	}
	var all []drawn
	for _, title := range titles {
		svg, err := drawPlot(title, byTitle[title], r.Markers)
		if err != nil {
			return nil, fmt.Errorf("drawing %s: %w", title, err)
		}
		all = append(all, drawn{title, svg})
	}
	return all, nil
}

func drawPlot(title string, series []Series, markers []Marker) ([]byte, error) {
	p := plot.New()
	first := series[0]
	p.Title.Text = title
	p.X.Label.Text, p.Y.Label.Text = first.X, first.Unit
	p.X.Tick.Marker, p.Y.Tick.Marker = ticks{plot.DefaultTicks{}}, ticks{plot.DefaultTicks{}}
	if first.LogX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, ticks{plot.LogTicks{Prec: -1}}
	}
	if first.LogY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, ticks{plot.LogTicks{Prec: -1}}
	} else {
		p.Y.Min = 0
	}
	p.Legend.Top, p.Legend.Left, p.Legend.Padding = true, true, vg.Points(3)
	p.Add(plotter.NewGrid())
	for i, s := range series {
		if err := addLine(p, s, colors[i%len(colors)]); err != nil {
			return nil, err
		}
	}
	if first.LogX {
		widen(&p.X)
	}
	if first.LogY {
		widen(&p.Y)
	}
	if first.X == Seconds {
		if err := addMarkers(p, title, markers); err != nil {
			return nil, err
		}
	}
	return svg(p)
}

// widen a logarithmic axis whose values are all the same: it would reach below zero.
func widen(axis *plot.Axis) {
	const least = 2.0
	if axis.Max < least*axis.Min {
		middle := math.Sqrt(axis.Min * axis.Max)
		axis.Min, axis.Max = middle/least, middle*least
	}
}

// ticks have labels as all numbers are written. Where an axis has too few that are labelled,
// as a logarithmic one of less than two decades, those of 2 and 5 are as well.
type ticks struct{ plot.Ticker }

// Ticks is of plot.Ticker.
func (t ticks) Ticks(from, to float64) []plot.Tick {
	all, labelled := t.Ticker.Ticks(from, to), 0
	for i := range all {
		if all[i].Label != "" {
			all[i].Label = number.Text(all[i].Value)
			if from <= all[i].Value && all[i].Value <= to {
				labelled++
			}
		}
	}
	if labelled > 1 {
		return all
	}
	for i := range all {
		digit := all[i].Value / math.Pow(10, math.Floor(math.Log10(all[i].Value)))
		if nearest := math.Round(digit); nearest == 2 || nearest == 5 {
			all[i].Label = number.Text(all[i].Value)
		}
	}
	return all
}

func addLine(p *plot.Plot, s Series, c color.Color) error {
	points := make(plotter.XYs, len(s.Points))
	for i, point := range s.Points {
		points[i] = plotter.XY{X: point[0], Y: point[1]}
		if s.LogX {
			points[i].X = max(points[i].X, leastShown)
		}
		if s.LogY {
			points[i].Y = max(points[i].Y, leastShown)
		}
	}
	line, dots, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	line.Color, line.Width = c, vg.Points(1.5)
	p.Add(line)
	if len(points) < fewPoints {
		dots.GlyphStyle = draw.GlyphStyle{Color: c, Radius: vg.Points(2.5), Shape: draw.CircleGlyph{}}
		p.Add(dots)
	}
	p.Legend.Add(s.Name, line)
	return nil
}

// addMarkers draws moments as upright lines, over all of the plot.
func addMarkers(p *plot.Plot, title string, markers []Marker) error {
	i := 0
	for _, marker := range markers {
		if !strings.HasSuffix(title, marker.Of) {
			continue
		}
		line, err := plotter.NewLine(plotter.XYs{{X: marker.Seconds, Y: p.Y.Min}, {X: marker.Seconds, Y: p.Y.Max}})
		if err != nil {
			return err
		}
		line.Color, line.Width = markerColors[i%len(markerColors)], vg.Points(1)
		line.Dashes = []vg.Length{vg.Points(4), vg.Points(2)}
		p.Add(line)
		p.Legend.Add(marker.Name, line)
		i++
	}
	return nil
}

// svg draws the plot, and its legend beside it, where no line is.
func svg(p *plot.Plot) ([]byte, error) {
	legend := p.Legend
	p.Legend = plot.NewLegend()
	canvas := vgsvg.New(plotWidth, plotHeight)
	all := draw.New(canvas)
	all.SetColor(p.BackgroundColor)
	all.Fill(all.Rectangle.Path())
	p.Draw(draw.Crop(all, 0, -legendWidth, 0, 0))
	legend.Draw(draw.Crop(all, plotWidth-legendWidth+vg.Points(6), 0, 0, -vg.Points(20)))
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// fileName of a plot: its title in small letters and hyphens.
func (d drawn) fileName() string {
	words := strings.FieldsFunc(strings.ToLower(d.Title), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), "-") + ".svg"
}
