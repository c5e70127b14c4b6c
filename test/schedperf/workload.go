package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	perfDirectory = "test/integration/scheduler_perf"
	configFile    = "performance-config.yaml"
)

// source is the source of Kubernetes in the module cache.
type source struct{ Version, Dir string }

// workload is a workload of scheduler_perf.
type workload struct {
	// Package is the path of the package in the folder scheduler_perf, such as "affinity".
	Package string   `json:"package"`
	Case    string   `json:"case"`
	Size    string   `json:"workload"`
	Labels  []string `json:"labels,omitempty"`
	// Threshold is the throughput in pods/s that upstream requires on its test machine; 0 if it requires none.
	Threshold float64 `json:"threshold,omitempty"`
	// hasPodGroups is true if the workload enables pod groups, which dist-scheduler's node search does not
	// support.
	hasPodGroups bool
	// config is a scheduler_perf configuration with only this workload.
	config []byte
}

func (w workload) name() string { return path.Join(w.Package, w.Case, w.Size) }

// findSource downloads the source of Kubernetes to the module cache if necessary, and returns its path.
func findSource(ctx context.Context) (source, error) {
	output, err := exec.CommandContext(ctx, "go", "list", "-m", "-json", "k8s.io/kubernetes").Output()
	if err != nil {
		return source{}, fmt.Errorf("finding the source of Kubernetes: %w", err)
	}
	var s source
	return s, json.Unmarshal(output, &s)
}

// workloads returns the workloads of all packages that the options select.
func (s source) workloads(opts options) ([]workload, error) {
	root := filepath.Join(s.Dir, perfDirectory)
	var chosen []workload
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != configFile {
			return err
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		found, err := parseConfig(folder, content)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, w := range found {
			if (opts.size == "all" || slices.Contains(w.Labels, opts.size)) && opts.run.MatchString(w.name()) {
				chosen = append(chosen, w)
			}
		}
		return nil
	})
	if err == nil && len(chosen) == 0 {
		err = errors.New("no workload matches -run and -size; see -list -size all")
	}
	return chosen, err
}

// parseConfig splits a configuration into its workloads. It removes the thresholds from their configurations,
// because they are for upstream's test machine, and a run below its threshold would fail without a result.
func parseConfig(folder string, content []byte) ([]workload, error) {
	var cases []map[string]any
	if err := yaml.Unmarshal(content, &cases); err != nil {
		return nil, err
	}
	var all []workload
	for _, testCase := range cases {
		sizes, _ := testCase["workloads"].([]any)
		for _, size := range sizes {
			one, ok := size.(map[string]any)
			if !ok {
				return nil, fmt.Errorf("a workload of %v is not a map", testCase["name"])
			}
			threshold := thresholdOf(one["threshold"])
			delete(one, "threshold")
			testCase["workloads"] = []any{one}
			config, err := yaml.Marshal([]any{testCase})
			if err != nil {
				return nil, err
			}
			all = append(all, workload{
				Package: folder, Case: fmt.Sprint(testCase["name"]), Size: fmt.Sprint(one["name"]),
				Labels: append(words(testCase["labels"]), words(one["labels"])...), Threshold: threshold,
				hasPodGroups: enablesPodGroups(testCase) || enablesPodGroups(one), config: config,
			})
		}
	}
	return all, nil
}

// thresholdOf returns the threshold of a workload if it is a number. It returns 0 if the workload has none, or
// has one for each of several metrics.
func thresholdOf(threshold any) float64 {
	value, _ := threshold.(float64)
	return value
}

// enablesPodGroups reports whether a case or workload enables pod groups.
func enablesPodGroups(part map[string]any) bool {
	gates, _ := part["featureGates"].(map[string]any)
	return gates["GenericWorkload"] == true
}

// words converts a YAML list to strings.
func words(list any) []string {
	items, _ := list.([]any)
	var all []string
	for _, item := range items {
		all = append(all, strings.TrimSpace(fmt.Sprint(item)))
	}
	return all
}
