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
	// columnWidth is the minimum width of a column of blocks.
	columnWidth = 62
	nameWidth   = 30
	valueWidth  = 10
	// mostLines is the maximum number of lines of a block.
	mostLines = 8
)

// Render draws a frame for a terminal of width × height characters. If there is not enough
// room, it first reduces the number of lines of each block, then omits the last blocks.
func Render(f Frame, width, height int) string {
	columns := max(1, width/columnWidth)
	each := width/columns - 1
	room := height - 3
	var parts [][]string
	for most := mostLines; most > 0; most-- {
		total := 0
		for _, b := range f.Blocks {
			total += min(len(b.Lines), most) + 2
		}
		// Start with the smallest height, so that the columns have similar lengths.
		for high := total / columns; high <= room; high++ {
			fits := false
			if parts, fits = layout(f.Blocks, columns, each, high, most); fits {
				return page(f, parts, width, each, room)
			}
		}
	}
	parts, _ = layout(f.Blocks, columns, each, room, 1)
	return page(f, parts, width, each, room)
}

// layout fills one column after the other with blocks, and reports whether all blocks fit.
func layout(blocks []Block, columns, width, room, most int) (parts [][]string, fits bool) {
	parts = make([][]string, columns)
	column := 0
	for _, b := range blocks {
		text := b.render(width, most)
		for column < columns && len(parts[column]) > 0 && len(parts[column])+len(text) > room {
			column++
		}
		if column == columns || len(text) > room {
			return parts, false
		}
		parts[column] = append(parts[column], text...)
	}
	return parts, true
}

func page(f Frame, parts [][]string, width, each, room int) string {
	lines := []string{cut(f.Header, width), ""}
	for row := range room {
		var line strings.Builder
		for _, part := range parts {
			text := ""
			if row < len(part) {
				text = part[row]
			}
			line.WriteString(pad(text, each+1))
		}
		lines = append(lines, strings.TrimRight(line.String(), " "))
	}
	// Remove empty lines below the last block.
	for len(lines) > 2 && lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return strings.Join(append(lines, cut(f.Footer, width)), "\n")
}

func (b Block) render(width, most int) []string {
	lines := []string{cut(fmt.Sprintf("%s (%s)", b.Title, b.Unit), width)}
	for _, l := range b.Lines[:min(len(b.Lines), most)] {
		text := "  " + pad(cut(l.Name, nameWidth-1), nameWidth) + fmt.Sprintf("%*s  ", valueWidth, number.Text(l.Now))
		lines = append(lines, cut(text+Curve(l.Past, max(0, width-utf8.RuneCountInString(text)-1)), width))
	}
	return append(lines, "")
}

var levels = []rune("▁▂▃▄▅▆▇█")

// Curve draws values as a line of block characters, scaled from 0 to the largest value. If
// there are more than width values, it draws the last ones.
func Curve(values []float64, width int) string {
	values = values[max(0, len(values)-width):]
	if len(values) == 0 {
		return ""
	}
	top := slices.Max(values)
	curve := make([]rune, len(values))
	for i, value := range values {
		level := 0
		if top > 0 {
			level = int(max(value, 0) / top * float64(len(levels)-1))
		}
		curve[i] = levels[level]
	}
	return string(curve)
}

func cut(text string, width int) string {
	if runes := []rune(text); len(runes) > width {
		return string(runes[:max(0, width-1)]) + "…"
	}
	return text
}

func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}
