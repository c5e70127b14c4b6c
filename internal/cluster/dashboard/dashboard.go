// Package dashboard is what Prometheus and Grafana need to look at a cluster: where the
// pages with metrics are, and a dashboard over them. Its panels are those with which the
// published million-node cluster was shown: the store, the API servers, the scheduler, the
// nodes, and what each process takes.
//
// Missing: alerts.
package dashboard

import (
	"encoding/json"
	"fmt"
)

// panel is one plot.
type panel struct {
	title, about string
	unit         string // as Grafana calls it
	queries      []query
}

// query is one or more lines of a plot; the legend is made of labels.
type query struct{ expr, legend string }

// row is panels that belong together.
type row struct {
	title  string
	panels []panel
}

// ClusterLabel is set by [Prometheus] to the name of the cluster; the dashboard has a
// variable for it.
const ClusterLabel = "cluster"

// Expressions are those of all panels, for tests.
func Expressions() []string {
	var all []string
	for _, r := range rows() {
		for _, p := range r.panels {
			for _, q := range p.queries {
				all = append(all, q.expr)
			}
		}
	}
	return all
}

const (
	columns               = 24 // of Grafana's grid
	panelWidth, panelHigh = 8, 8
)

// JSON is the dashboard, to be imported by Grafana 10 or later.
func JSON() ([]byte, error) {
	var panels []any
	y, id := 0, 1
	for _, r := range rows() {
		panels = append(panels, object{
			"id": id, "type": "row", "title": r.title, "collapsed": false, "panels": []any{},
			"gridPos": object{"x": 0, "y": y, "w": columns, "h": 1},
		})
		y, id = y+1, id+1
		for i, p := range r.panels {
			x := i * panelWidth % columns
			if i > 0 && x == 0 {
				y += panelHigh
			}
			panels = append(panels, p.object(id, x, y))
			id++
		}
		y += panelHigh
	}
	data, err := json.MarshalIndent(object{
		"uid": "k8s-1m", "title": "k8s-1m", "tags": []string{"kubernetes"}, "schemaVersion": 39, "version": 1,
		"editable": true, "graphTooltip": 1, "refresh": "5s", "time": object{"from": "now-15m", "to": "now"},
		"timepicker": object{}, "annotations": object{"list": []any{}}, "links": []any{}, "panels": panels,
		"templating": object{"list": []any{
			object{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
			object{
				"name": "cluster", "label": "Cluster", "type": "query", "datasource": source, "refresh": 2, "sort": 1,
				"query":      object{"query": "label_values(k1m_component_ready, " + ClusterLabel + ")", "refId": "cluster"},
				"definition": "label_values(k1m_component_ready, " + ClusterLabel + ")",
			},
		}},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("writing the dashboard: %w", err)
	}
	return append(data, '\n'), nil
}

type object map[string]any

var source = object{"type": "prometheus", "uid": "${datasource}"}

func (p panel) object(id, x, y int) object {
	targets := []any{}
	for i, q := range p.queries {
		targets = append(targets, object{
			"refId": string(rune('A' + i)), "datasource": source, "expr": q.expr, "legendFormat": q.legend, "range": true,
		})
	}
	return object{
		"id": id, "type": "timeseries", "title": p.title, "description": p.about, "datasource": source, "targets": targets,
		"gridPos": object{"x": x, "y": y, "w": panelWidth, "h": panelHigh},
		"fieldConfig": object{"overrides": []any{}, "defaults": object{
			"unit": p.unit, "min": 0, "custom": object{"lineWidth": 1, "fillOpacity": 5, "showPoints": "never"},
		}},
		"options": object{
			"legend":  object{"displayMode": "list", "placement": "bottom", "showLegend": true},
			"tooltip": object{"mode": "multi", "sort": "desc"},
		},
	}
}
