package experiment

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// resultFile contains the complete result. The other files of the directory are generated from it.
const resultFile = "result.json"

// Write puts result.json, index.html, table.md and an SVG file for each chart into a directory.
func (r *Result) Write(dir string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	// result.json is written first, so that it exists even if drawing a chart fails.
	if err := writeAll(dir, map[string][]byte{resultFile: append(data, '\n')}); err != nil {
		return err
	}
	return r.writeViews(dir)
}

// writeViews writes all files except result.json.
func (r *Result) writeViews(dir string) error {
	charts := r.charts()
	files, err := svgFiles(charts)
	if err != nil {
		return err
	}
	files["table.md"] = []byte(r.markdown())
	if files["index.html"], err = r.html(charts); err != nil {
		return err
	}
	return writeAll(dir, files)
}

// writeAll writes files to a directory. files maps a file name to its content.
func writeAll(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("%w; choose another --out", err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return fmt.Errorf("%w; choose another --out", err)
		}
	}
	return nil
}

// markdown returns table.md: the command, the tables, the verdicts and the notes.
func (r *Result) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "`%s`, %s; %s.\n", r.Command, r.Time.Format("2006-01-02"), r.Machine)
	if r.Partial {
		b.WriteString("\n**Partial: the run ended early.**\n")
	}
	for _, t := range append(r.Tables, r.ratioTable()...) {
		fmt.Fprintf(&b, "\n%s\n\n", t.Title)
		for i, row := range append([][]string{t.header()}, t.body()...) {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
			if i == 0 {
				b.WriteString(strings.Repeat("|---", len(row)) + "|\n")
			}
		}
	}
	if len(r.Verdicts)+len(r.Notes) > 0 {
		b.WriteString("\n")
	}
	for _, v := range r.Verdicts {
		fmt.Fprintf(&b, "- %s\n", v)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "- %s\n", note)
	}
	return b.String()
}

// Print writes the result as text.
func (r *Result) Print(w io.Writer) {
	fmt.Fprintf(w, "%s: %s (scale %s)\n", r.Name, r.Title, r.Scale.Name)
	for _, t := range append(r.Tables, r.ratioTable()...) {
		if len(t.Rows) > 0 {
			fmt.Fprintf(w, "\n%s\n", t.Title)
			t.print(w)
		}
	}
	fmt.Fprintln(w)
	for _, v := range r.Verdicts {
		fmt.Fprintln(w, v)
	}
	operations, _, _ := r.Errors.read()
	fmt.Fprintf(w, "errors: %.3f %% of %d operations", 100*r.Errors.Rate(), operations)
	if kinds := r.Errors.Describe(); kinds != "" {
		fmt.Fprintf(w, ": %s", kinds)
	}
	fmt.Fprintln(w)
	for _, note := range r.Notes {
		fmt.Fprintln(w, note)
	}
	if r.Partial {
		fmt.Fprintln(w, "partial: the run ended early")
	}
}

func (t *Table) print(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, row := range append([][]string{t.header()}, t.body()...) {
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	// The error is ignored, because w is the terminal.
	_ = table.Flush()
}

// header returns the headings of the columns.
func (t *Table) header() (names []string) {
	for _, c := range t.Columns {
		names = append(names, c.String())
	}
	return names
}

// body returns the rows with formatted cells.
func (t *Table) body() (rows [][]string) {
	for _, row := range t.Rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = text(cell)
		}
		rows = append(rows, cells)
	}
	return rows
}

// ratioTable returns a table of the ratios, or no table if there are no ratios.
func (r *Result) ratioTable() []*Table {
	if len(r.Ratios) == 0 {
		return nil
	}
	t := &Table{Title: "Ratios in this run", Columns: Columns("figure", "unit", "measured", "its value", "compared with", "its value", "ratio of values", "better if")}
	for _, ratio := range r.Ratios {
		better := "lower"
		if ratio.MoreIsBetter {
			better = "higher"
		}
		t.Add(ratio.Name, ratio.Unit, ratio.Ours, ratio.OursValue, ratio.Peer, ratio.PeerValue, ratio.Ratio, better)
	}
	return []*Table{t}
}
