package chart

import (
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	rowHeight = 0.8 * vg.Centimeter
	barWidth  = 0.45 * vg.Centimeter
)

// SVG draws the bars with their names on the left.
func (c *BarChart) SVG() ([]byte, error) {
	p := newPlot()
	p.Title.Text, p.X.Label.Text = c.Title, c.XLabel
	p.X.Min = 0
	for _, good := range []bool{true, false} {
		if err := c.addBars(p, good); err != nil {
			return nil, err
		}
	}
	if err := c.addReference(p); err != nil {
		return nil, err
	}
	if err := c.addTargets(p); err != nil {
		return nil, err
	}
	p.X.Max *= 1 + headroom
	p.NominalY(c.namesFromBelow()...)
	height := vg.Length(len(c.Bars))*rowHeight + 2.5*vg.Centimeter
	canvas := vgsvg.New(plotWidth, height)
	p.Draw(draw.Crop(draw.New(canvas), vg.Points(4), -vg.Points(8), vg.Points(4), -vg.Points(6)))
	return encode(canvas)
}

// fromBelow returns the bar at a height: gonum/plot counts from the bottom.
func (c *BarChart) fromBelow(row int) Bar { return c.Bars[len(c.Bars)-1-row] }

func (c *BarChart) namesFromBelow() []string {
	names := make([]string, len(c.Bars))
	for row := range names {
		names[row] = c.fromBelow(row).Name
	}
	return names
}

// addBars adds the bars of one color, with bars of length zero in the rows of the other.
func (c *BarChart) addBars(p *plot.Plot, good bool) error {
	values := make(plotter.Values, len(c.Bars))
	for row := range values {
		if bar := c.fromBelow(row); bar.Good == good {
			values[row] = bar.Value
		}
	}
	chart, err := plotter.NewBarChart(values, barWidth)
	if err != nil {
		return err
	}
	chart.Horizontal, chart.Color, chart.LineStyle.Width = true, lineColors[1], 0
	if good {
		chart.Color = lineColors[0]
	}
	p.Add(chart)
	return nil
}

func (c *BarChart) addReference(p *plot.Plot) error {
	line, err := plotter.NewLine(plotter.XYs{{X: c.Reference, Y: -0.5}, {X: c.Reference, Y: float64(len(c.Bars)) - 0.5}})
	if err != nil {
		return err
	}
	p.Add(line)
	return nil
}

func (c *BarChart) addTargets(p *plot.Plot) error {
	var targets plotter.XYs
	for row := range c.Bars {
		if bar := c.fromBelow(row); bar.Target > 0 {
			targets = append(targets, plotter.XY{X: bar.Target, Y: float64(row)})
		}
	}
	if len(targets) == 0 {
		return nil
	}
	marks, err := plotter.NewScatter(targets)
	if err != nil {
		return err
	}
	marks.GlyphStyle = draw.GlyphStyle{Color: color.Black, Radius: vg.Points(4), Shape: draw.CrossGlyph{}}
	p.Add(marks)
	return nil
}
