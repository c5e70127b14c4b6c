package main

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// contents collects the components of all programs, each once, and what depends on what.
type contents struct {
	components map[string]cdx.Component
	depends    map[string][]string
}

// writeBOM writes the SBOM: all libraries that are compiled into the programs.
func (r *release) writeBOM() error {
	found := contents{map[string]cdx.Component{}, map[string][]string{}}
	for _, program := range goPrograms {
		if err := found.addGo(filepath.Join(r.programs, program), program, r.version); err != nil {
			return fmt.Errorf("reading the modules of %s: %w", program, err)
		}
	}
	if err := found.addRust(r); err != nil {
		return fmt.Errorf("reading the crates: %w", err)
	}
	out, err := os.Create(filepath.Join(r.out, "k8s-1m-"+r.version+".cdx.json"))
	if err != nil {
		return err
	}
	defer out.Close()
	if err := cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(found.bom(r)); err != nil {
		return err
	}
	return out.Close()
}

// bom returns the document. It has no serial number, which would be random.
func (c *contents) bom(r *release) *cdx.BOM {
	root := cdx.Component{BOMRef: "k8s-1m", Type: cdx.ComponentTypeApplication, Name: "k8s-1m", Version: r.version}
	c.depends[root.BOMRef] = slices.Concat(rustPrograms, goPrograms)
	document := cdx.NewBOM()
	document.Metadata = &cdx.Metadata{Timestamp: r.time.Format(time.RFC3339), Component: &root}
	components, dependencies := []cdx.Component{}, []cdx.Dependency{}
	for _, component := range c.components {
		components = append(components, component)
	}
	slices.SortFunc(components, func(a, b cdx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })
	for ref, others := range c.depends {
		slices.Sort(others)
		others = slices.Compact(others)
		dependencies = append(dependencies, cdx.Dependency{Ref: ref, Dependencies: &others})
	}
	slices.SortFunc(dependencies, func(a, b cdx.Dependency) int { return strings.Compare(a.Ref, b.Ref) })
	document.Components, document.Dependencies = &components, &dependencies
	return document
}

// addProgram adds a program, with the checksum of its file.
func (c *contents) addProgram(name, version, path string) error {
	sum, err := checksum(path)
	if err != nil {
		return err
	}
	c.components[name] = cdx.Component{
		BOMRef: name, Type: cdx.ComponentTypeApplication, Name: name, Version: version,
		Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sum)}},
	}
	return nil
}

// addGo adds a Go program and its modules, as `go version -m` lists them.
func (c *contents) addGo(path, name, version string) error {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return err
	}
	if err := c.addProgram(name, version, path); err != nil {
		return err
	}
	c.addLibrary(name, "golang", "std", strings.TrimPrefix(info.GoVersion, "go"), "", "")
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		c.addLibrary(name, "golang", module.Path, module.Version, "", "")
	}
	return nil
}

// addLibrary adds a library and that something depends on it, and returns its reference.
func (c *contents) addLibrary(dependent, kind, name, version, license, sum string) string {
	ref := fmt.Sprintf("pkg:%s/%s@%s", kind, name, version)
	component := cdx.Component{BOMRef: ref, Type: cdx.ComponentTypeLibrary, Name: name, Version: version, PackageURL: ref}
	if license != "" {
		component.Licenses = &cdx.Licenses{{Expression: license}}
	}
	if sum != "" {
		component.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: sum}}
	}
	c.components[ref] = component
	c.depends[dependent] = append(c.depends[dependent], ref)
	return ref
}
