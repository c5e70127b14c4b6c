package clusterflags

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Printer writes the tables of a command.
type Printer struct{ w *tabwriter.Writer }

// NewPrinter returns a printer that writes when [Printer.End] is called.
func NewPrinter(w io.Writer) *Printer { return &Printer{tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)} }

// Line writes a line. Tabs separate its columns.
func (p *Printer) Line(format string, args ...any) { fmt.Fprintf(p.w, format+"\n", args...) }

// End writes notes and deviations, and then everything to the writer.
func (p *Printer) End(notes, deviations []string) error {
	for _, note := range notes {
		p.Line("Note: %s", note)
	}
	for _, deviation := range deviations {
		p.Line("DEVIATION: %s", deviation)
	}
	return p.w.Flush()
}

// OrDash returns a text, or a dash in place of an empty one.
func OrDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
