// Package dashboard generates the configurations with which Prometheus and Grafana monitor a cluster:
// a scrape configuration ([Prometheus]) and a Grafana dashboard ([JSON]). The dashboard has panels for the
// store, the API servers, the gateways, the scheduler, the nodes and the processes.
//
// deploy/grafana/k8s-1m.json is the output of JSON. After a change of rows.go, regenerate it:
//
//	go test ./internal/cluster/dashboard -update
//
// The package defines no alerts.
package dashboard

import (
	"encoding/json"
	"fmt"
)

// panel is one plot.
type panel struct {
	title, description string
	unit               string // name of the unit in Grafana
	queries            []query
}

// query is a PromQL expression, and the legend template of its series.
type query struct{ expr, legend string }

// row is a titled group of panels.
type row struct {
	title  string
	panels []panel
}

// ClusterLabel is the label that contains the name of the cluster. [Prometheus] adds the label to all
// metrics. The dashboard has a variable that selects the cluster.
const ClusterLabel = "cluster"

// Expressions returns the PromQL expressions of all panels, for tests.
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
	// Sizes are in units of Grafana's grid, which has 24 columns.
	columns                 = 24
	panelWidth, panelHeight = 8, 8
)

// JSON returns the dashboard in the format that Grafana 10 and later versions import.
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
				y += panelHeight
			}
			panels = append(panels, p.object(id, x, y))
			id++
		}
		y += panelHeight
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
		return nil, fmt.Errorf("encoding the dashboard: %w", err)
	}
	return append(data, '\n'), nil
}

// object is a JSON object.
type object map[string]any

// source is the data source that the user selects in the dashboard.
var source = object{"type": "prometheus", "uid": "${datasource}"}

// object returns the JSON form of a panel at a position in the grid.
func (p panel) object(id, x, y int) object {
	targets := []any{}
	for i, q := range p.queries {
		targets = append(targets, object{
			"refId": string(rune('A' + i)), "datasource": source, "expr": q.expr, "legendFormat": q.legend, "range": true,
		})
	}
	return object{
		"id": id, "type": "timeseries", "title": p.title, "description": p.description, "datasource": source, "targets": targets,
		"gridPos": object{"x": x, "y": y, "w": panelWidth, "h": panelHeight},
		"fieldConfig": object{"overrides": []any{}, "defaults": object{
			"unit": p.unit, "min": 0, "custom": object{"lineWidth": 1, "fillOpacity": 5, "showPoints": "never"},
		}},
		"options": object{
			"legend":  object{"displayMode": "list", "placement": "bottom", "showLegend": true},
			"tooltip": object{"mode": "multi", "sort": "desc"},
		},
	}
}
