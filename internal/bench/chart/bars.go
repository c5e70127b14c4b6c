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

// SVG draws the chart, with the names of the bars on the left.
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

// fromBelow returns the bar of a row. gonum/plot counts rows from the bottom.
func (c *BarChart) fromBelow(row int) Bar { return c.Bars[len(c.Bars)-1-row] }

// namesFromBelow returns the names of the bars from the bottom to the top.
func (c *BarChart) namesFromBelow() []string {
	names := make([]string, len(c.Bars))
	for row := range names {
		names[row] = c.fromBelow(row).Name
	}
	return names
}

// addBars draws the bars whose field Good has this value. gonum/plot needs a bar in every row, so the other
// rows get bars of length zero.
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

// addReference draws the vertical reference line.
func (c *BarChart) addReference(p *plot.Plot) error {
	line, err := plotter.NewLine(plotter.XYs{{X: c.Reference, Y: -0.5}, {X: c.Reference, Y: float64(len(c.Bars)) - 0.5}})
	if err != nil {
		return err
	}
	p.Add(line)
	return nil
}

// addTargets draws a cross at the target of each bar that has one.
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
