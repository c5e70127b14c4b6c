package main

import "github.com/k8s-1m/k8s-1m/internal/bench/chart"

// maxMargin is the maximum length of a bar. If bars were longer, other bars would be too short to read.
const maxMargin = 6

// marginChart shows for each row how many times better its figure is than the required limit,
// and marks the aim.
func marginChart(rows []outcome) *chart.BarChart {
	c := &chart.BarChart{Title: "Margin over the required limit", XLabel: "times better than required", Reference: 1}
	for _, o := range rows {
		if o.Figure == 0 {
			continue
		}
		limits := o.limits()
		margin := min(limits.margin(o.Figure, o.Must), maxMargin)
		if margin < 0 {
			margin = maxMargin // the slowest put was faster than on the idle store
		}
		c.Bars = append(c.Bars, chart.Bar{Name: o.ID, Value: margin, Good: margin >= 1, Target: limits.margin(o.Aim, o.Must)})
	}
	return c
}

// ratioChart shows for each row that measures both stores how many times better mem_etcd is
// than etcd.
func ratioChart(rows []outcome) *chart.BarChart {
	c := &chart.BarChart{Title: "mem_etcd compared with etcd", XLabel: "times better than etcd", Reference: 1}
	for _, o := range rows {
		if o.Etcd == 0 || o.Ours == 0 {
			continue
		}
		ratio := o.Etcd / o.Ours
		if o.oursShouldBeLarger() {
			ratio = 1 / ratio
		}
		c.Bars = append(c.Bars, chart.Bar{Name: o.ID, Value: ratio, Good: ratio >= 1})
	}
	return c
}

// oursShouldBeLarger reports whether a larger value of mem_etcd is better. AtLeast applies to the figure. If
// the figure is etcd's value divided by mem_etcd's, a smaller value of mem_etcd makes the figure larger.
func (o outcome) oursShouldBeLarger() bool {
	return o.AtLeast && o.FigureName != "etcd ÷ mem_etcd"
}
