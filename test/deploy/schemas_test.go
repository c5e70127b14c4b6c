package deploy

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// writeSchemas writes a JSON schema for each kind of Kubernetes into a directory, with the names that kubeconform looks
// for. They come from the OpenAPI document of the version that go.mod pins, and allow no unknown fields.
func writeSchemas(t *testing.T, directory string) {
	t.Helper()
	module, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	must(t, err)
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(module)), "api", "openapi-spec", "swagger.json"))
	must(t, err)
	var document struct{ Definitions map[string]map[string]any }
	must(t, json.Unmarshal(text, &document))
	for _, definition := range document.Definitions {
		adapt(definition)
	}
	for name, definition := range document.Definitions {
		kinds, _ := definition["x-kubernetes-group-version-kind"].([]any)
		// Options, such as DeleteOptions, are in every group.
		if len(kinds) != 1 {
			continue
		}
		kind := kinds[0].(map[string]any)
		file := kind["kind"].(string)
		if group := kind["group"].(string); group != "" {
			file += "-" + strings.Split(group, ".")[0]
		}
		needed := map[string]any{}
		collect(document.Definitions, name, needed)
		schema, err := json.Marshal(map[string]any{"$ref": "#/definitions/" + name, "definitions": needed})
		must(t, err)
		must(t, os.WriteFile(filepath.Join(directory, strings.ToLower(file+"-"+kind["version"].(string))+".json"), schema, 0o600))
	}
}

// The version of cert-manager whose schemas are used, and the checksum of its module.
const (
	certManager    = "github.com/cert-manager/cert-manager@v1.21.2"
	certManagerSum = "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68="
)

// writeCertManagerSchemas writes the schemas of cert-manager's kinds, from its custom resource definitions.
func writeCertManagerSchemas(t *testing.T, directory string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", certManager).Output()
	must(t, err)
	var module struct{ Dir, Sum string }
	must(t, json.Unmarshal(out, &module))
	if module.Sum != certManagerSum {
		t.Fatalf("the module %s has the checksum %s, want %s", certManager, module.Sum, certManagerSum)
	}
	for _, plural := range []string{"certificates", "issuers"} {
		var definition struct {
			Spec struct {
				Names    struct{ Kind string }
				Group    string
				Versions []struct {
					Name   string
					Schema struct {
						Definition map[string]any `json:"openAPIV3Schema"`
					}
				}
			}
		}
		read(t, filepath.Join(module.Dir, "deploy", "crds", "cert-manager.io_"+plural+".yaml"), &definition)
		for _, version := range definition.Spec.Versions {
			adapt(version.Schema.Definition)
			schema, err := json.Marshal(version.Schema.Definition)
			must(t, err)
			file := definition.Spec.Names.Kind + "-" + strings.Split(definition.Spec.Group, ".")[0] + "-" + version.Name
			must(t, os.WriteFile(filepath.Join(directory, strings.ToLower(file)+".json"), schema, 0o600))
		}
	}
}

// adapt changes a definition in place: objects with fields have no others, and what is a number or a text in YAML may be
// both.
func adapt(definition map[string]any) {
	if _, hasFields := definition["properties"]; hasFields {
		definition["additionalProperties"] = false
	}
	if definition["format"] == "int-or-string" {
		definition["type"] = []any{"integer", "string"}
	}
	if text, ok := definition["description"].(string); ok && strings.HasPrefix(text, "Quantity is") {
		definition["type"] = []any{"number", "string"}
	}
	delete(definition, "format")
	for _, value := range definition {
		adaptAll(value)
	}
}

func adaptAll(value any) {
	fields, ok := value.(map[string]any)
	if !ok {
		return
	}
	if _, isSchema := fields["type"].(string); isSchema {
		adapt(fields)
		return
	}
	for _, inner := range fields {
		adaptAll(inner)
	}
}

// collect adds a definition and those that it refers to.
func collect(all map[string]map[string]any, name string, into map[string]any) {
	if _, done := into[name]; done {
		return
	}
	into[name] = all[name]
	references(all[name], func(reference string) { collect(all, reference, into) })
}

func references(value any, use func(name string)) {
	switch value := value.(type) {
	case map[string]any:
		for key, inner := range value {
			if text, ok := inner.(string); ok && key == "$ref" {
				use(strings.TrimPrefix(text, "#/definitions/"))
			}
			references(inner, use)
		}
	case []any:
		for _, inner := range value {
			references(inner, use)
		}
	}
}
