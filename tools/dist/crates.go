package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// metadata is the part of the output of `cargo metadata` that the list of crates needs.
type metadata struct {
	Packages []crate
	Resolve  struct{ Nodes []node }
}

// node says which crates a crate depends on.
type node struct {
	ID   string
	Deps []struct {
		Package string `json:"pkg"`
		// Kinds are the uses of the dependency; the kind of a normal dependency is null.
		Kinds []struct{ Kind *string } `json:"dep_kinds"`
	}
}

// crate is a package. Source is empty for those of this repository.
type crate struct {
	ID, Name, Version, License, Source string
	Targets                            []struct {
		Name string
		Kind []string
	}
}

// lockFile is Cargo.lock.
type lockFile struct {
	Package []struct{ Name, Version, Checksum string }
}

// addRust adds all Rust programs and the crates that they use on this platform, with the checksums of Cargo.lock. Crates
// that only tests and build scripts use are not compiled into the programs, so they are missing.
func (c *contents) addRust(r *release) error {
	read, err := readMetadata()
	if err != nil {
		return err
	}
	sums, err := readChecksums("Cargo.lock")
	if err != nil {
		return err
	}
	for _, program := range rustPrograms {
		root := slices.IndexFunc(read.Packages, func(p crate) bool { return p.builds(program) })
		if root < 0 {
			return fmt.Errorf("no crate builds %s", program)
		}
		if err := c.addProgram(program, r.version, filepath.Join(r.programs, program)); err != nil {
			return err
		}
		c.addCrates(program, read.Packages[root].ID, read, sums, map[string]bool{})
	}
	return nil
}

// readMetadata asks cargo for the crates of the workspace on this platform.
func readMetadata() (*metadata, error) {
	version, err := exec.Command("rustc", "-vV").Output()
	if err != nil {
		return nil, fmt.Errorf("rustc -vV: %w", err)
	}
	_, host, _ := strings.Cut(string(version), "host: ")
	host, _, _ = strings.Cut(host, "\n")
	output, err := exec.Command("cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", host).Output()
	if err != nil {
		return nil, fmt.Errorf("cargo metadata: %w", err)
	}
	read := &metadata{}
	return read, json.Unmarshal(output, read)
}

// readChecksums returns the checksums of Cargo.lock, by name and version.
func readChecksums(path string) (map[string]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var lock lockFile
	if err := toml.Unmarshal(data, &lock); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	sums := map[string]string{}
	for _, p := range lock.Package {
		sums[p.Name+" "+p.Version] = p.Checksum
	}
	return sums, nil
}

// builds reports whether the crate has a program with this name.
func (p *crate) builds(program string) bool {
	for _, target := range p.Targets {
		if target.Name == program && slices.Contains(target.Kind, "bin") {
			return true
		}
	}
	return false
}

// dependencies returns the IDs of the crates that are compiled into a crate.
func (m *metadata) dependencies(id string) []string {
	var found []string
	for _, n := range m.Resolve.Nodes {
		for _, dep := range n.Deps {
			for _, kind := range dep.Kinds {
				if n.ID == id && kind.Kind == nil {
					found = append(found, dep.Package)
				}
			}
		}
	}
	return found
}

// addCrates adds the crates that the crate with this ID depends on. dependent is its reference. Crates of this
// repository are part of the program, so what they depend on is a dependency of the program.
func (c *contents) addCrates(dependent, id string, read *metadata, sums map[string]string, seen map[string]bool) {
	if seen[id] {
		return
	}
	seen[id] = true
	for _, dep := range read.dependencies(id) {
		p := read.Packages[slices.IndexFunc(read.Packages, func(p crate) bool { return p.ID == dep })]
		next := dependent
		if p.Source != "" {
			next = c.addLibrary(dependent, "cargo", p.Name, p.Version, spdx(p.License), sums[p.Name+" "+p.Version])
		}
		c.addCrates(next, p.ID, read, sums, seen)
	}
}

// spdx returns a license as SPDX expression. Old crates separate alternatives by a slash.
func spdx(license string) string { return strings.ReplaceAll(license, "/", " OR ") }
