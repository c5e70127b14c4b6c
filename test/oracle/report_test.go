package oracle

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	fwk "k8s.io/kube-scheduler/framework"
	"sigs.k8s.io/yaml"
)

// report fails the test because of a wrong decision. It prints the pod and the scores of the nodes, and
// writes all objects to a file.
func (w *world) report(problem string, pod *v1.Pod, s state, e expectation) {
	w.t.Helper()
	must(w.t, os.MkdirAll(w.settings.reports, 0o755))
	name := fmt.Sprintf("%s-%d-%d.yaml", strings.ReplaceAll(w.mode, " ", "-"), w.seed, w.number)
	file := filepath.Join(w.settings.reports, name)
	var all bytes.Buffer
	fmt.Fprintf(&all, "# %s: %s\n", w.describe(), problem)
	writeYAML(w, &all, pod)
	for _, node := range s.nodes {
		writeYAML(w, &all, node)
	}
	for _, other := range s.pods {
		writeYAML(w, &all, other)
	}
	for _, object := range s.others {
		writeYAML(w, &all, object)
	}
	must(w.t, os.WriteFile(file, all.Bytes(), 0o644))
	var text bytes.Buffer
	writeYAML(w, &text, pod)
	w.t.Errorf("%s: %s: %s\nscores by upstream's plugins:\n%sthe pod:\n%sall objects: %s",
		w.describe(), pod.Name, problem, scoreTable(e.PluginScores), &text, file)
}

// scoreTable returns a line for each node with its total score and the scores of the plugins.
func scoreTable(scores []fwk.NodePluginScores) string {
	var table strings.Builder
	for _, node := range slices.SortedFunc(slices.Values(scores), func(a, b fwk.NodePluginScores) int { return int(b.TotalScore - a.TotalScore) }) {
		fmt.Fprintf(&table, "  %s %d:", node.Name, node.TotalScore)
		for _, plugin := range node.Scores {
			fmt.Fprintf(&table, " %s %d", plugin.Name, plugin.Score)
		}
		table.WriteByte('\n')
	}
	return table.String()
}

// writeYAML writes an object, without the fields that only say who wrote it.
func writeYAML(w *world, to *bytes.Buffer, object runtime.Object) {
	object = object.DeepCopyObject()
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	must(w.t, err)
	object.GetObjectKind().SetGroupVersionKind(kinds[0])
	accessor, err := meta.Accessor(object)
	must(w.t, err)
	accessor.SetManagedFields(nil)
	text, err := yaml.Marshal(object)
	must(w.t, err)
	to.WriteString("---\n")
	to.Write(text)
}
