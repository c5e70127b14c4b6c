package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const exampleList = "../../../deploy/prices/google-cloud.yaml"

// runPlan runs k1m plan and returns its exit code and what it printed.
func runPlan(args ...string) (code int, out, errors string) {
	var stdout, stderr bytes.Buffer
	code = Main("test", append([]string{"plan"}, args...), &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestPlanPrintsThePriceInEachFormat(t *testing.T) {
	common := []string{"--nodes", "50000", "--lease-cache=false", "--prices", exampleList}
	var figures []float64
	for format, parse := range map[string]func([]byte, any) error{
		"json": json.Unmarshal, "yaml": func(data []byte, into any) error { return yaml.UnmarshalStrict(data, into) },
	} {
		code, out, stderr := runPlan(append(common, "-o", format)...)
		var result map[string]any
		if err := parse([]byte(out), &result); code != 0 || err != nil {
			t.Fatalf("k1m plan -o %s = exit code %d, %s, %v, want its result", format, code, stderr, err)
		}
		total := result["price"].(map[string]any)["total"].(map[string]any)["on-demand"].(map[string]any)["hour"].(float64)
		if _, planned := result["needs"]; !planned || total <= 0 {
			t.Errorf("k1m plan -o %s = total %v, want the needs and a total", format, total)
		}
		figures = append(figures, total)
	}
	if figures[0] != figures[1] {
		t.Errorf("total in JSON and YAML = %v, want the same", figures)
	}
	for format, want := range map[string]string{"table": "WHAT MORE MONEY BUYS", "text": "PRICE, in USD", "html": "<!doctype html>"} {
		if code, out, stderr := runPlan(append(common, "-o", format)...); code != 0 || !strings.Contains(out, want) {
			t.Errorf("k1m plan -o %s = exit code %d, %s, %s, want %q", format, code, out, stderr, want)
		}
	}
}

func TestPlanRejectsFlagsThatDoNotFit(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"-o html", "-o html needs --prices"},
		{"-o xml", `-o "xml": no such format; choose table, json, yaml or html`},
		{"--purchase spot", "--purchase needs --prices"},
		{"--store-machine x", "--store-machine needs --prices"},
		{"--existing x", "--existing needs --prices"},
		{"--prices " + exampleList + " --purchase weekly", `--purchase "weekly": no such purchase`},
		{"--prices " + exampleList + " --clients moon", `--clients "moon": no such place`},
		{"--prices " + exampleList + " --apiserver-cores 4", "use --apiserver-machine to choose a type"},
		{"--prices " + exampleList + " --store-machine x", `machine type "x" of store is not in the price list`},
	} {
		if code, _, stderr := runPlan(strings.Fields(c.line)...); code != 2 || !strings.Contains(stderr, c.want) {
			t.Errorf("k1m plan %s = exit code %d, %s, want 2 and %q", c.line, code, stderr, c.want)
		}
	}
	if code, _, stderr := runPlan("--prices", "missing.yaml"); code != 1 || !strings.Contains(stderr, "price list missing.yaml: ") {
		t.Errorf("k1m plan with a missing list = exit code %d, %s, want 1 and its name", code, stderr)
	}
}
