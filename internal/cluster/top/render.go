package top

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/k8s-1m/k8s-1m/internal/util/number"
)

// Frame is what there is to see at a time.
type Frame struct {
	// Head is the first line, and Foot the last.
	Head, Foot string
	Blocks     []Block
}

const (
	// A column of blocks is not narrower.
	columnWidth = 62
	nameWidth   = 30
	valueWidth  = 10
	// Lines of a block, if there is room.
	mostLines = 8
)

// Render draws a frame into a terminal of that size. Blocks have as many lines as there is
// room for, and those for which there is none are left out, the last first.
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
		// Columns that are about equally long look better than one after the other.
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

// layout puts blocks into columns, one after the other, and says whether all have room.
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
	lines := []string{cut(f.Head, width), ""}
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
	// What is below the last block is of no use.
	for len(lines) > 2 && lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return strings.Join(append(lines, cut(f.Foot, width)), "\n")
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

// Curve draws values, the last ones if there is no room for all; nothing is the bottom, the
// largest the top.
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
