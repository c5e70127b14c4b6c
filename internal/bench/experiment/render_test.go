package experiment

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

func TestRenderWritesTheSameFilesAsTheRun(t *testing.T) {
	_, out, err := execute(t, t.Context(), func(_ context.Context, r *Run) error {
		r.Result.Table("Things", "thing", "count", "took, ms").Add("first", 12345, 1.5)
		r.Result.Line(Series{Plot: "took", Name: "things", X: "things", Unit: "ms"}, 1, 2)
		r.Result.Compare("ours", "theirs", []Figure{{"cost", "µs", 20, false}}, []Figure{{"cost", "µs", 10, false}})
		r.Result.Errors.Add("timeout", context.DeadlineExceeded)
		r.Result.Errors.AddMany(999, nil)
		r.Result.Note("a note")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	written := map[string]string{}
	for _, name := range []string{"result.json", "index.html", "table.md", "took.svg"} {
		data, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		written[name] = string(data)
		if name != "result.json" {
			if err := os.Remove(filepath.Join(out, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := Render(out); err != nil {
		t.Fatal(err)
	}
	for name, want := range written {
		if got, err := os.ReadFile(filepath.Join(out, name)); err != nil || string(got) != want {
			t.Errorf("%s is missing or differs from the file that the run wrote: %v", name, err)
		}
	}
}

func TestRenderNeedsAResult(t *testing.T) {
	dir := t.TempDir()
	if err := Render(dir); err == nil {
		t.Error("Render accepted an empty directory")
	}
	if err := os.WriteFile(filepath.Join(dir, "result.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Render(dir); err == nil {
		t.Error("Render accepted a result without a name")
	}
}
