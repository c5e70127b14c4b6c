package gateway

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// parseMetric returns the values of a gauge or counter in a page of metrics in the text format. The keys are
// the labels as they are written on the page, in braces; "" without labels.
func parseMetric(page io.Reader, name string) (map[string]float64, error) {
	found := map[string]float64{}
	lines := bufio.NewScanner(page)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		end := strings.LastIndexByte(rest, ' ')
		value, err := strconv.ParseFloat(rest[end+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("metric %s: %w", name, err)
		}
		found[rest[:end]] = value
	}
	return found, lines.Err()
}

// sumOf returns the sum of the samples of a metric, by their labels, whose labels contain a text. ok reports whether there
// are any.
func sumOf(byLabels map[string]float64, labels string) (sum float64, ok bool) {
	for written, value := range byLabels {
		if strings.Contains(written, labels) {
			sum, ok = sum+value, true
		}
	}
	return sum, ok
}

func values(byLabels map[string]float64) (all []float64) {
	for _, value := range byLabels {
		all = append(all, value)
	}
	return all
}
