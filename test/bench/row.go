package main

import (
	"context"
	"math"
	"slices"
)

// The names of the stores, which are also the names of their programs.
const (
	ours = "mem_etcd"
	etcd = "etcd"
)

// row is one line of the table: a measurement and its limits.
type row struct {
	ID    string
	Title string
	// Unit is the unit of a sample.
	Unit string
	// Stores are the stores that are measured, one after the other.
	Stores []string
	// Once means that the row is measured once, regardless of -repeat.
	Once bool
	// Figure computes the judged figure from the medians of the stores; etcd is 0 if it is not
	// measured.
	Figure     func(ours, etcd float64) float64
	FigureName string
	Limits     limits
	Sample     sampler
}

// sampler measures a store once.
type sampler func(ctx context.Context, l *lab, store string) (sample, error)

// sample is one measurement of one store.
type sample struct {
	Store string  `json:"store"`
	Value float64 `json:"value"`
	// Details are further values by name. The names contain the unit.
	Details map[string]float64 `json:"details,omitempty"`
	// Note is a remark on the value.
	Note string `json:"note,omitempty"`
	// Commands are the executed commands, with placeholders for addresses and directories.
	Commands []string `json:"commands,omitempty"`
}

// limits are the required limit (Must) and the aim of a figure.
type limits struct {
	Must, Aim float64
	// AtLeast means that larger figures are better.
	AtLeast bool
}

func atLeast(must, aim float64) limits { return limits{must, aim, true} }
func atMost(must, aim float64) limits  { return limits{must, aim, false} }

// verdict is the result of comparing a figure with its limits.
type verdict string

const (
	aimMet      verdict = "aim met"
	requiredMet verdict = "required met" // meets the required limit, but not the aim
	near        verdict = "near miss"    // misses the required limit by less than the tolerance of a short run
	missed      verdict = "missed"
	failed      verdict = "failed"
	notJudged   verdict = "not judged"
)

// judgeShort judges the figure of a short run. It may be worse than the required limit by a factor of up to
// 1.5. `k1m bench all --compare` uses the same tolerance.
func (l limits) judgeShort(figure float64) verdict {
	const tolerance = 1.5
	if v := l.judge(figure); v != missed || l.margin(figure, l.Must)*tolerance < 1 {
		return v
	}
	return near
}

// judge compares a figure with the required limit and the aim.
func (l limits) judge(figure float64) verdict {
	switch {
	case math.IsNaN(figure) || math.IsInf(figure, 0):
		return failed
	case l.margin(figure, l.Aim) >= 1:
		return aimMet
	case l.margin(figure, l.Must) >= 1:
		return requiredMet
	default:
		return missed
	}
}

// margin returns how many times better than the limit the figure is.
func (l limits) margin(figure, limit float64) float64 {
	if l.AtLeast {
		return figure / limit
	}
	return limit / figure
}

// Functions that compute the figure of a row from the medians of the stores.
func oursAlone(ours, _ float64) float64       { return ours }
func etcdOverOurs(ours, etcd float64) float64 { return etcd / ours }
func oursOverEtcd(ours, etcd float64) float64 { return ours / etcd }

// median returns the median of the values, which must not be empty.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}
