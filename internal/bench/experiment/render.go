package experiment

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// Render rewrites index.html, table.md and the SVG files in a directory from its result.json. It does not
// change result.json.
func Render(dir string) error {
	r, err := readResult(filepath.Join(dir, resultFile))
	if err != nil {
		return err
	}
	return r.writeViews(dir)
}

func readResult(path string) (*Result, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, usage.Errorf("%s does not exist; name a directory that `k1m bench EXPERIMENT --out` wrote", path)
	}
	if err != nil {
		return nil, err
	}
	r := &Result{Errors: NewTally(1)}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s is not a result of an experiment: %w", path, err)
	}
	if r.Name == "" {
		return nil, fmt.Errorf("%s is not a result of an experiment: it has no name", path)
	}
	return r, nil
}
