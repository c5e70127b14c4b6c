package top

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/k8s-1m/k8s-1m/internal/util/number"
)

// Frame is the content of the terminal at one time.
type Frame struct {
	// Header is the first line and Footer the last line.
	Header, Footer string
	Blocks         []Block
}

const (
	// minColumnWidth is the minimum width of a column of blocks.
	minColumnWidth = 62
	nameWidth      = 30
	valueWidth     = 10
	// maxBlockLines is the maximum number of lines of a block, without its title.
	maxBlockLines = 8
)

// Render draws a frame for a terminal of width × height characters. If not all blocks fit, Render first
// reduces the number of lines of each block, then omits the last blocks.
func Render(f Frame, width, height int) string {
	columnCount := max(1, width/minColumnWidth)
	columnWidth := width/columnCount - 1
	rows := height - 3 // without the header, the empty line below it, and the footer
	var columns [][]string
	for maxLines := maxBlockLines; maxLines > 0; maxLines-- {
		total := 0
		for _, b := range f.Blocks {
			total += min(len(b.Lines), maxLines) + 2
		}
		// Start with the smallest possible height, so that the columns have similar lengths.
		for columnHeight := total / columnCount; columnHeight <= rows; columnHeight++ {
			fits := false
			if columns, fits = layout(f.Blocks, columnCount, columnWidth, columnHeight, maxLines); fits {
				return page(f, columns, width, columnWidth, rows)
			}
		}
	}
	columns, _ = layout(f.Blocks, columnCount, columnWidth, rows, 1)
	return page(f, columns, width, columnWidth, rows)
}

// layout fills one column after the other with blocks, and reports whether all blocks fit.
func layout(blocks []Block, count, width, height, maxLines int) (columns [][]string, fits bool) {
	columns = make([][]string, count)
	current := 0
	for _, b := range blocks {
		text := b.render(width, maxLines)
		for current < count && len(columns[current]) > 0 && len(columns[current])+len(text) > height {
			current++
		}
		if current == count || len(text) > height {
			return columns, false
		}
		columns[current] = append(columns[current], text...)
	}
	return columns, true
}

// page joins the header, the columns side by side, and the footer.
func page(f Frame, columns [][]string, width, columnWidth, rows int) string {
	lines := []string{truncate(f.Header, width), ""}
	for row := range rows {
		var line strings.Builder
		for _, column := range columns {
			text := ""
			if row < len(column) {
				text = column[row]
			}
			line.WriteString(pad(text, columnWidth+1))
		}
		lines = append(lines, strings.TrimRight(line.String(), " "))
	}
	// Remove empty lines below the last block.
	for len(lines) > 2 && lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return strings.Join(append(lines, truncate(f.Footer, width)), "\n")
}

func (b Block) render(width, maxLines int) []string {
	lines := []string{truncate(fmt.Sprintf("%s (%s)", b.Title, b.Unit), width)}
	for _, l := range b.Lines[:min(len(b.Lines), maxLines)] {
		text := "  " + pad(truncate(l.Name, nameWidth-1), nameWidth) + fmt.Sprintf("%*s  ", valueWidth, number.Text(l.Now))
		lines = append(lines, truncate(text+Sparkline(l.Past, max(0, width-utf8.RuneCountInString(text)-1)), width))
	}
	return append(lines, "")
}

var levels = []rune("▁▂▃▄▅▆▇█")

// Sparkline draws the last width values as a line of block characters, scaled from 0 to the largest value.
func Sparkline(values []float64, width int) string {
	values = values[max(0, len(values)-width):]
	if len(values) == 0 {
		return ""
	}
	largest := slices.Max(values)
	line := make([]rune, len(values))
	for i, value := range values {
		level := 0
		if largest > 0 {
			level = int(max(value, 0) / largest * float64(len(levels)-1))
		}
		line[i] = levels[level]
	}
	return string(line)
}

// truncate shortens a text to width characters. The last character of a shortened text is "…".
func truncate(text string, width int) string {
	if runes := []rune(text); len(runes) > width {
		return string(runes[:max(0, width-1)]) + "…"
	}
	return text
}

// pad appends spaces to a text up to width characters.
func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}
