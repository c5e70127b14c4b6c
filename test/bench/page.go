package main

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// page is self-contained: the plot is in it.
var page = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><title>mem_etcd beside etcd</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; } th, td { padding: .3em .8em; text-align: right; border-bottom: 1px solid #ccc; }
th:first-child, td:first-child { text-align: left; } svg { max-width: 100%; height: auto; }
</style>
<h1>mem_etcd beside etcd</h1>
<p>{{.Time}}, {{.Machine}}. Server and client on a core each; CPU is what the operating system
counted for the server, for an operation, or for an event delivered to a watcher.</p>
{{.Plot}}
<table><tr><th>workload<th>mem_etcd<th>etcd<th>etcd ÷ mem_etcd<th>mem_etcd, ops/s<th>etcd, ops/s<th>mem_etcd p99, µs<th>etcd p99, µs</tr>
{{range .Rows}}<tr><td>{{.Name}}<td>{{.Ours}}<td>{{.Etcd}}<td>{{.Ratio}}<td>{{.OursRate}}<td>{{.EtcdRate}}<td>{{.OursP99}}<td>{{.EtcdP99}}</tr>
{{end}}</table></html>
`))

type pageRow struct {
	Name, Ours, Etcd, Ratio, OursRate, EtcdRate string
	OursP99, EtcdP99                            int64
}

func writePage(path string, r result) error {
	rows := make([]pageRow, 0, len(r.Measurements)/2)
	for _, pair := range pairs(r) {
		ours, etcd := pair[0], pair[1]
		rows = append(rows, pageRow{
			Name: ours.Workload, Ours: cost(ours), Etcd: cost(etcd), Ratio: fmt.Sprintf("%.1f", ratio(ours, etcd)),
			OursRate: fmt.Sprintf("%.0f", ours.OpsPerSecond), EtcdRate: fmt.Sprintf("%.0f", etcd.OpsPerSecond),
			OursP99: ours.P99Micros, EtcdP99: etcd.P99Micros,
		})
	}
	svg, err := ratios(r)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	data := struct {
		Time, Machine string
		Plot          template.HTML // made here, from numbers and names of ours
		Rows          []pageRow
	}{r.Time.Format("2006-01-02 15:04 UTC"), r.Machine, svg, rows}
	if err := page.Execute(&text, data); err != nil {
		return err
	}
	return os.WriteFile(path, text.Bytes(), 0o644)
}

// ratios draws how much more an operation costs etcd, a bar for each workload.
func ratios(r result) (template.HTML, error) {
	rows := pairs(r)
	if len(rows) == 0 {
		return "", nil
	}
	values, names := plotter.Values{}, []string{}
	for _, row := range rows {
		values = append(values, ratio(row[0], row[1]))
		names = append(names, row[0].Workload)
	}
	p := plot.New()
	p.Y.Label.Text = "cost on etcd ÷ cost on mem_etcd"
	p.Y.Min = 0
	bars, err := plotter.NewBarChart(values, vg.Points(30))
	if err != nil {
		return "", err
	}
	bars.Color = color.RGBA{R: 0x32, G: 0x6c, B: 0xe5, A: 0xff}
	bars.LineStyle.Width = 0
	p.Add(bars)
	p.NominalX(names...)
	writer, err := p.WriterTo(24*vg.Centimeter, 9*vg.Centimeter, "svg")
	if err != nil {
		return "", err
	}
	var svg bytes.Buffer
	if _, err := writer.WriteTo(&svg); err != nil {
		return "", err
	}
	// An XML declaration has no place inside HTML.
	text := svg.Bytes()
	return template.HTML(text[bytes.Index(text, []byte("<svg")):]), nil
}
