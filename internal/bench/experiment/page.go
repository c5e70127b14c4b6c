package experiment

import (
	"bytes"
	"html/template"

	"github.com/k8s-1m/k8s-1m/internal/bench/chart"
	"github.com/k8s-1m/k8s-1m/internal/util/number"
)

// page is the template of index.html, which is a single file and works offline.
var page = template.Must(template.New("page").Funcs(template.FuncMap{"cell": text, "number": number.Text}).Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{{.Name}}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; } th, td { padding: .3em .7em; text-align: right; border-bottom: 1px solid #ccc; }
th:first-child, td:first-child { text-align: left; } td:first-child { white-space: nowrap; } {{.Style}}
.met { color: #176b2c; } .missed { color: #b00020; font-weight: bold; } small { color: #666; }
pre { white-space: pre-wrap; background: #f5f5f5; padding: .5em; }
</style>
<h1>{{.Name}}</h1>
<p>{{.Title}}. {{.Time.Format "2006-01-02 15:04 UTC"}}, {{printf "%.0f" .Seconds}} s{{if .Partial}}, <b>partial: the run ended early</b>{{end}}{{with .Error}}<br><b>{{.}}</b>{{end}}</p>
<pre>{{.Command}}</pre>
<ul>
<li>Machine: {{.Machine}}.
<li>{{range $name, $version := .Versions}}{{$name}}: {{$version}}. {{end}}
<li>Scale: {{.Scale.Name}} (× {{number .Scale.Factor}}, × {{number .Scale.Machine}} for this machine). {{range $name, $value := .Parameters}}--{{$name}} {{$value}} {{end}}
<li>Errors: {{printf "%.3f" .ErrorPercent}} % of {{.Operations}} operations{{with .ErrorKinds}}: {{.}}{{end}}.
{{range .Notes}}<li>{{.}}
{{end}}</ul>
{{with .Verdicts}}<h2>Verdicts</h2>
<table><tr><th>objective<th>measured<th>limit<th>unit<th>operations<th>worst<th>verdict</tr>
{{range .}}<tr><td>{{.Name}}<td>{{number .Measured}}<td>{{.Relation}} {{number .Limit}}<td>{{.Unit}}<td>{{cell .Operations}}<td>{{.Worst}}<td class="{{if .Met}}met{{else}}missed{{end}}">{{if .Met}}met{{else if eq .Operations 0}}not measured{{with .Reason}}: {{.}}{{end}}{{else}}missed{{end}}</tr>
{{end}}</table>{{end}}
{{range .Tables}}<h2>{{.Title}}</h2>
<table><tr>{{range .Columns}}<th>{{.}}{{end}}</tr>
{{range .Rows}}<tr>{{range .}}<td>{{cell .}}{{end}}</tr>
{{end}}</table>
{{end}}{{with .Ratios}}<h2>Ratios</h2>
<table><tr><th>figure<th>unit<th>ours<th>value<th>peer<th>peer's value<th>ours ÷ peer<th>better</tr>
{{range .}}<tr><td>{{.Name}}<td>{{.Unit}}<td>{{.Ours}}<td>{{number .OursValue}}<td>{{.Peer}}<td>{{number .PeerValue}}<td>{{number .Ratio}}<td>{{if .MoreIsBetter}}more{{else}}less{{end}}</tr>
{{end}}</table>{{end}}
{{with .Charts}}<h2>Charts</h2>
<p>Point at a chart for values. Zoom with the slider, with the toolbox, or with Ctrl and the mouse wheel. Click a name in the legend to hide or show its line.</p>
{{.}}{{end}}</html>
`))

// html returns index.html of a result.
func (r *Result) html(charts []*chart.LineChart) ([]byte, error) {
	operations, _, _ := r.Errors.read()
	drawn := make([]chart.Chart, len(charts))
	for i := range charts {
		drawn[i] = charts[i]
	}
	interactive, err := chart.HTML(drawn...)
	if err != nil {
		return nil, err
	}
	data := struct {
		*Result
		Style        template.CSS
		Charts       template.HTML
		ErrorPercent float64
		Operations   int64
		ErrorKinds   string
	}{r, chart.Style, interactive, 100 * r.Errors.Rate(), operations, r.Errors.Describe()}
	var out bytes.Buffer
	if err := page.Execute(&out, data); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
