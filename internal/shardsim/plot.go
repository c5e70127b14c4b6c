package shardsim

import (
	"encoding/json"
	"fmt"
	"image/color"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

const (
	plotWidth, plotHeight = 18 * vg.Centimeter, 11 * vg.Centimeter
	// What is zero has no place on a logarithmic axis.
	leastShown = 1e-3
)

// colors of fan-outs, in their order.
var colors = []color.Color{
	color.RGBA{R: 0x32, G: 0x6c, B: 0xe5, A: 0xff}, color.RGBA{R: 0xb0, G: 0x00, B: 0x20, A: 0xff},
	color.RGBA{R: 0x1b, G: 0x8a, B: 0x3a, A: 0xff}, color.RGBA{R: 0x8a, G: 0x5a, B: 0x00, A: 0xff},
}

// Write puts result.json and the plots into a folder.
func (r *Result) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "result.json"), append(data, '\n'), 0o644); err != nil {
		return err
	}
	for _, p := range []struct {
		file, label string
		of          func(*Outcome) float64
	}{
		{"pods-per-second.svg", "pods a second", func(o *Outcome) float64 { return o.PodsPerSecond }},
		{"round-p50.svg", "round, p50, ms", func(o *Outcome) float64 { return o.RoundMillisP50 }},
		{"round-p99.svg", "round, p99, ms", func(o *Outcome) float64 { return o.RoundMillisP99 }},
		{"leader-cores.svg", "cores busy at the leader", func(o *Outcome) float64 { return o.LeaderCores }},
		{"leader-share.svg", "leader's share of all CPU time", func(o *Outcome) float64 { return o.LeaderShare }},
		{"leader-bytes.svg", "KB at the leader, a pod", func(o *Outcome) float64 { return o.LeaderBytesPerPod / 1000 }},
		{"cpu-per-pod.svg", "CPU of all replicas, µs a pod", func(o *Outcome) float64 { return o.CPUMicrosPerPod }},
	} {
		if err := r.plot(filepath.Join(dir, p.file), p.label, p.of); err != nil {
			return fmt.Errorf("drawing %s: %w", p.file, err)
		}
	}
	return nil
}

// plot draws a figure by the number of shards, with a line for each fan-out, dashed
// where there are stragglers.
func (r *Result) plot(file, label string, of func(*Outcome) float64) error {
	type line struct {
		fanout     int
		stragglers float64
	}
	lines, order, fanouts := map[line]plotter.XYs{}, []line{}, map[int]int{}
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		l := line{o.Fanout, o.Stragglers}
		if lines[l] == nil {
			order = append(order, l)
		}
		if _, known := fanouts[o.Fanout]; !known {
			fanouts[o.Fanout] = len(fanouts)
		}
		lines[l] = append(lines[l], plotter.XY{X: float64(o.Shards), Y: max(of(o), leastShown)})
	}
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = "shards", label
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	for _, l := range order {
		drawn, points, err := plotter.NewLinePoints(lines[l])
		if err != nil {
			return err
		}
		name := fmt.Sprintf("fan-out %d", l.fanout)
		drawn.Color = colors[fanouts[l.fanout]%len(colors)]
		points.GlyphStyle = draw.GlyphStyle{Color: drawn.Color, Radius: vg.Points(2), Shape: draw.CircleGlyph{}}
		if l.stragglers > 0 {
			drawn.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
			name += fmt.Sprintf(", %g %% stragglers", 100*l.stragglers)
		}
		p.Add(drawn, points)
		p.Legend.Add(name, drawn, points)
	}
	return p.Save(plotWidth, plotHeight, file)
}
