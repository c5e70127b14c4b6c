package chart

import (
	"bytes"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/k8s-1m/k8s-1m/internal/util/number"
)

const (
	// Size of the plot without the legend.
	plotWidth, plotHeight = 21 * vg.Centimeter, 9.5 * vg.Centimeter
	// legendGap is the space between plot and legend, in points.
	legendGap = 8
	// A line with fewer points than maxDots shows each point as a dot.
	maxDots = 30
	// headroom is the fraction of the axis that stays free between the largest value and the frame.
	headroom = 0.06
)

// lineColors are the colors of lines. If there are more lines than colors, the further lines use the same
// colors and are dashed.
var lineColors = []color.Color{
	color.RGBA{R: 0x32, G: 0x6c, B: 0xe5, A: 0xff}, color.RGBA{R: 0xb0, G: 0x00, B: 0x20, A: 0xff},
	color.RGBA{R: 0x1b, G: 0x8a, B: 0x3a, A: 0xff}, color.RGBA{R: 0xc7, G: 0x7c, B: 0x02, A: 0xff},
	color.RGBA{R: 0x7b, G: 0x2c, B: 0xbf, A: 0xff}, color.RGBA{R: 0x00, G: 0x8b, B: 0x9a, A: 0xff},
	color.RGBA{R: 0x8a, G: 0x5a, B: 0x44, A: 0xff}, color.RGBA{R: 0x66, G: 0x66, B: 0x66, A: 0xff},
}

// markerColors are the colors of markers: green, red, orange and violet. They repeat.
var markerColors = []color.Color{
	color.RGBA{R: 0x00, G: 0x90, B: 0x00, A: 0xff}, color.RGBA{R: 0xd0, G: 0x00, B: 0x00, A: 0xff},
	color.RGBA{R: 0xe6, G: 0x8a, B: 0x00, A: 0xff}, color.RGBA{R: 0x94, G: 0x00, B: 0xd3, A: 0xff},
}

// SVG draws the chart, with its legend on the right.
func (c *LineChart) SVG() ([]byte, error) {
	p := newPlot()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.Title, c.XLabel, c.YLabel
	setAxis(&p.X, c.LogX)
	setAxis(&p.Y, c.LogY)
	p.Add(plotter.NewGrid())
	for i, line := range c.Lines {
		if err := addLine(p, line, i); err != nil {
			return nil, err
		}
	}
	setRange(&p.X, c.LogX, c.Markers)
	if !c.LogY {
		p.Y.Min = min(0, p.Y.Min)
	}
	setRange(&p.Y, c.LogY, nil)
	for i, marker := range c.Markers {
		if err := addMarker(p, marker, i); err != nil {
			return nil, err
		}
	}
	return svgWithLegend(p)
}

// newPlot returns an empty plot with a sans-serif font.
func newPlot() *plot.Plot {
	p := plot.New()
	for _, style := range []*text.Style{
		&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle,
	} {
		style.Font = font.Font{Typeface: "Liberation", Variant: "Sans", Size: style.Font.Size}
	}
	p.Title.TextStyle.Font.Size = 14
	p.Title.Padding = vg.Points(6)
	p.X.Label.Padding, p.Y.Label.Padding = vg.Points(4), vg.Points(4)
	p.Legend.TextStyle.Font.Size = 11
	p.Legend.Top, p.Legend.Left, p.Legend.Padding = true, true, vg.Points(3.5)
	return p
}

// setAxis sets the scale and the ticks of an axis.
func setAxis(axis *plot.Axis, logarithmic bool) {
	axis.Tick.Marker = ticks{linearTicks{}}
	if logarithmic {
		axis.Scale, axis.Tick.Marker = plot.LogScale{}, ticks{plot.LogTicks{Prec: -1}}
	}
}

// setRange widens the range of an axis, so that lines do not touch the frame and all markers are visible.
func setRange(axis *plot.Axis, logarithmic bool, markers []Marker) {
	for _, m := range markers {
		axis.Min, axis.Max = min(axis.Min, m.X), max(axis.Max, m.X)
	}
	if logarithmic {
		// A logarithmic range from a value to less than four times that value would have no labelled tick.
		const smallestRange = 4.0
		factor := math.Pow(axis.Max/axis.Min, headroom)
		if axis.Max < smallestRange*axis.Min {
			factor = math.Sqrt(smallestRange * axis.Min / axis.Max)
		}
		axis.Min, axis.Max = axis.Min/factor, axis.Max*factor
		return
	}
	if axis.Max <= axis.Min {
		axis.Max = axis.Min + 1
	}
	axis.Max += headroom * (axis.Max - axis.Min)
}

// linearTicks places about six labelled ticks. Their distance is 1, 2 or 5 times a power of ten.
type linearTicks struct{}

// Ticks implements plot.Ticker.
func (linearTicks) Ticks(from, to float64) []plot.Tick {
	const wanted = 6
	step := math.Pow(10, math.Floor(math.Log10((to-from)/wanted)))
	for _, factor := range []float64{1, 2, 5, 10} {
		if (to-from)/(step*factor) <= wanted {
			step *= factor
			break
		}
	}
	var marks []plot.Tick
	for i := math.Ceil(from / step); i*step <= to; i++ {
		marks = append(marks, plot.Tick{Value: i * step, Label: number.Text(i * step)})
	}
	return marks
}

// ticks labels the ticks of an axis with number.Text. If fewer than two labelled ticks of a logarithmic axis
// are visible, ticks whose first digit is 2 or 5 are labelled as well.
type ticks struct{ plot.Ticker }

// Ticks implements plot.Ticker.
func (t ticks) Ticks(from, to float64) []plot.Tick {
	marks, labelled := t.Ticker.Ticks(from, to), 0
	for i := range marks {
		if marks[i].Label == "" {
			continue
		}
		marks[i].Label = number.Text(marks[i].Value)
		if from <= marks[i].Value && marks[i].Value <= to {
			labelled++
		}
	}
	if labelled > 1 {
		return marks
	}
	for i := range marks {
		digit := marks[i].Value / math.Pow(10, math.Floor(math.Log10(marks[i].Value)))
		if nearest := math.Round(digit); nearest == 2 || nearest == 5 {
			marks[i].Label = number.Text(marks[i].Value)
		}
	}
	return marks
}

// addLine draws the segments of a line, and adds the line to the legend.
func addLine(p *plot.Plot, l Line, index int) error {
	style := draw.LineStyle{Color: lineColors[index%len(lineColors)], Width: vg.Points(1.5)}
	if index >= len(lineColors) {
		style.Dashes = []vg.Length{vg.Points(5), vg.Points(2)}
	}
	for i, segment := range l.Segments {
		points := make(plotter.XYs, len(segment))
		for j, point := range segment {
			points[j] = plotter.XY{X: point[0], Y: point[1]}
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		line.LineStyle = style
		p.Add(line)
		if len(points) < maxDots {
			dots.GlyphStyle = draw.GlyphStyle{Color: style.Color, Radius: vg.Points(2.5), Shape: draw.CircleGlyph{}}
			p.Add(dots)
		}
		if i == 0 {
			p.Legend.Add(l.Name, line)
		}
	}
	return nil
}

// addMarker draws a dashed vertical line over the full height of the plot, and adds it to the legend.
func addMarker(p *plot.Plot, marker Marker, index int) error {
	line, err := plotter.NewLine(plotter.XYs{{X: marker.X, Y: p.Y.Min}, {X: marker.X, Y: p.Y.Max}})
	if err != nil {
		return err
	}
	line.Color, line.Width = markerColors[index%len(markerColors)], vg.Points(1)
	line.Dashes = []vg.Length{vg.Points(4), vg.Points(2)}
	p.Add(line)
	p.Legend.Add(marker.Name, line)
	return nil
}

// svgWithLegend draws the plot with its legend on the right. The picture is wide enough for the longest name
// in the legend.
func svgWithLegend(p *plot.Plot) ([]byte, error) {
	legend := p.Legend
	p.Legend = plot.NewLegend()
	// The size of the canvas depends on the size of the legend, which is therefore measured on a temporary
	// canvas.
	area := legend.Rectangle(draw.New(vgsvg.New(plotWidth, plotHeight)))
	legendWidth := area.Max.X - area.Min.X + vg.Points(2*legendGap)
	height := max(plotHeight, area.Max.Y-area.Min.Y+vg.Points(40))
	canvas := vgsvg.New(plotWidth+legendWidth, height)
	drawing := draw.New(canvas)
	drawing.SetColor(p.BackgroundColor)
	drawing.Fill(drawing.Rectangle.Path())
	p.Draw(draw.Crop(drawing, vg.Points(4), -legendWidth, vg.Points(4), -vg.Points(6)))
	legend.Draw(draw.Crop(drawing, plotWidth+vg.Points(legendGap), 0, 0, -vg.Points(28)))
	return encode(canvas)
}

// encode returns the SVG of a canvas. The canvas uses the font Liberation Sans. encode adds fallback fonts
// with the same metrics for systems without this font.
func encode(canvas *vgsvg.Canvas) ([]byte, error) {
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return nil, err
	}
	return bytes.ReplaceAll(out.Bytes(), []byte("font-family:Liberation Sans;"),
		[]byte("font-family:Liberation Sans,Arimo,Arial,Helvetica,sans-serif;")), nil
}
