package main

import (
	"bytes"
	"html/template"
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

var (
	good = color.RGBA{R: 0x32, G: 0x6c, B: 0xe5, A: 0xff}
	bad  = color.RGBA{R: 0xb0, G: 0x00, B: 0x20, A: 0xff}
	mark = color.RGBA{A: 0xff}
)

const (
	plotWidth = 28 * vg.Centimeter
	rowHeight = 0.8 * vg.Centimeter
	barWidth  = 0.45 * vg.Centimeter
	// Beyond this a margin says nothing more, and would hide the others.
	largestMargin = 6
)

// bars lie, with the first row on top.
type bars struct {
	names       []string
	goods, bads plotter.Values
	marks       plotter.XYs
	label       string
	middle      float64
}

// plotMargins draws how many times better than its must each figure is, and
// where the aim lies.
func plotMargins(rows []outcome) (template.HTML, error) {
	b := bars{label: "times better than must", middle: 1}
	for _, o := range slices.Backward(rows) {
		if o.Figure == 0 {
			continue
		}
		limits := o.limits()
		margin := min(limits.margin(o.Figure, o.Must), largestMargin)
		if margin < 0 {
			margin = largestMargin // a pause shorter than the quiet ones
		}
		b.add(o.ID, margin, margin >= 1)
		b.marks = append(b.marks, plotter.XY{X: limits.margin(o.Aim, o.Must), Y: float64(len(b.names) - 1)})
	}
	return b.draw()
}

// plotRatios draws how many times better mem_etcd is than etcd.
func plotRatios(rows []outcome) (template.HTML, error) {
	b := bars{label: "times better than etcd", middle: 1}
	for _, o := range slices.Backward(rows) {
		if o.Etcd == 0 || o.Ours == 0 {
			continue
		}
		ratio := o.Etcd / o.Ours
		if o.oursShouldBeLarger() {
			ratio = 1 / ratio
		}
		b.add(o.ID, ratio, ratio >= 1)
	}
	return b.draw()
}

// oursShouldBeLarger says whether a larger value of a store is a better one,
// which a ratio of etcd to ours hides.
func (o outcome) oursShouldBeLarger() bool {
	return o.AtLeast && o.FigureName != "etcd ÷ mem_etcd"
}

func (b *bars) add(name string, value float64, isGood bool) {
	b.names = append(b.names, name)
	inGood, inBad := value, 0.0
	if !isGood {
		inGood, inBad = 0, value
	}
	b.goods, b.bads = append(b.goods, inGood), append(b.bads, inBad)
}

func (b *bars) draw() (template.HTML, error) {
	if len(b.names) == 0 {
		return "", nil
	}
	p := plot.New()
	p.X.Label.Text = b.label
	p.X.Min = 0
	for values, fill := range map[*plotter.Values]color.Color{&b.goods: good, &b.bads: bad} {
		chart, err := plotter.NewBarChart(*values, barWidth)
		if err != nil {
			return "", err
		}
		chart.Horizontal, chart.Color, chart.LineStyle.Width = true, fill, 0
		p.Add(chart)
	}
	line, err := plotter.NewLine(plotter.XYs{{X: b.middle, Y: -0.5}, {X: b.middle, Y: float64(len(b.names)) - 0.5}})
	if err != nil {
		return "", err
	}
	p.Add(line)
	if len(b.marks) > 0 {
		marks, err := plotter.NewScatter(b.marks)
		if err != nil {
			return "", err
		}
		marks.GlyphStyle = draw.GlyphStyle{Color: mark, Radius: vg.Points(4), Shape: draw.CrossGlyph{}}
		p.Add(marks)
	}
	p.NominalY(b.names...)
	return svg(p, vg.Length(len(b.names))*rowHeight+2*vg.Centimeter)
}

func svg(p *plot.Plot, height vg.Length) (template.HTML, error) {
	writer, err := p.WriterTo(plotWidth, height, "svg")
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	if _, err := writer.WriteTo(&out); err != nil {
		return "", err
	}
	// An XML declaration has no place inside HTML.
	text := out.Bytes()
	return template.HTML(text[bytes.Index(text, []byte("<svg")):]), nil
}
