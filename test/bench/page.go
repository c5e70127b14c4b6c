package main

import (
	"bytes"
	"fmt"
	"html/template"
	"os"

	"github.com/k8s-1m/k8s-1m/internal/bench/chart"
	"github.com/k8s-1m/k8s-1m/internal/util/number"
)

// page is the template of index.html, which works offline and needs no other files.
var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"number": number.Text, "orNone": orNone, "limit": outcome.limit, "commands": outcome.commands, "spread": outcome.spread,
}).Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>mem_etcd compared with etcd</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; } th, td { padding: .3em .7em; text-align: right; border-bottom: 1px solid #ccc; }
th:first-child, td:first-child { text-align: left; } td:nth-child(n+7) { white-space: nowrap; }
{{.Style}}
.met { color: #176b2c; } .required, .near { color: #8a5a00; } .missed, .failed { color: #b00020; font-weight: bold; }
pre { white-space: pre-wrap; background: #f5f5f5; padding: .5em; } small { color: #666; }
</style>
<h1>mem_etcd compared with etcd</h1>
<p>{{.Time.Format "2006-01-02 15:04 UTC"}}, {{printf "%.0f" .Seconds}} s{{if .Quick}}, <b>short run: its figures are less precise</b>{{end}}{{if not .Complete}}, <b>not complete</b>{{end}}.</p>
<ul>
<li>Machine: {{.Machine}}.
<li>{{range $name, $version := .Versions}}{{$name}}: {{$version}}. {{end}}
<li>Both stores were measured in this run, one after the other, with the server on one core and the client on another. Values are medians of the samples (-repeat {{.Repeat}}).
<li>CPU is the CPU time of all threads of the server process, measured by the operating system.
<li>Data was on tmpfs; for the rows fsync, resident, restart and pause on {{.Disk}}.
</ul>
<h2>Verdicts</h2>
<table><tr><th>row<th>mem_etcd<th>etcd<th>unit<th>figure<th><th>required<th>aim<th>verdict</tr>
{{range .Rows}}<tr><td>{{.Title}}<br><small>{{.ID}}</small><td>{{number .Ours}}<br><small>{{spread . "mem_etcd"}}</small><td>{{orNone .Etcd}}<br><small>{{spread . "etcd"}}</small><td>{{.Unit}}<td>{{number .Figure}}<td>{{.FigureName}}<td>{{limit . .Must}}<td>{{limit . .Aim}}<td class="{{.Verdict}}">{{.Verdict}}{{with .Error}}<br><small>{{.}}</small>{{end}}</tr>
{{end}}</table>
<h2>Charts</h2>
<p>The first chart shows how many times better each figure is than the required limit. A figure meets the limit if its bar reaches 1. The cross is the aim. The second chart shows how many times better mem_etcd is than etcd, for rows that measure both.</p>
{{.Charts}}
<h2>Samples and commands</h2>
<p>$URL and $DIR differ between samples.</p>
{{range .Rows}}<details><summary>{{.Title}}</summary>
<table><tr><th>store<th>{{.Unit}}<th>details</tr>
{{range .Samples}}<tr><td>{{.Store}}<td>{{number .Value}}<td>{{with .Note}}{{.}}; {{end}}{{range $name, $value := .Details}}{{$name}} {{number $value}}; {{end}}</tr>
{{end}}</table>
<pre>{{range commands .}}{{.}}
{{end}}</pre></details>
{{end}}</html>
`))

// spread returns the smallest and the largest sample of a store as text; "" if there are fewer than two.
func (o outcome) spread(store string) string {
	values := o.values(store)
	if len(values) < 2 {
		return ""
	}
	smallest, largest := values[0], values[0]
	for _, value := range values {
		smallest, largest = min(smallest, value), max(largest, value)
	}
	return fmt.Sprintf("%s–%s", number.Text(smallest), number.Text(largest))
}

func writePage(path string, r result) error {
	var charts []chart.Chart
	for _, c := range []*chart.BarChart{marginChart(r.Rows), ratioChart(r.Rows)} {
		if len(c.Bars) > 0 {
			charts = append(charts, c)
		}
	}
	interactive, err := chart.HTML(charts...)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	data := struct {
		result
		Style  template.CSS
		Charts template.HTML
	}{r, chart.Style, interactive}
	if err := page.Execute(&text, data); err != nil {
		return err
	}
	return os.WriteFile(path, text.Bytes(), 0o644)
}
