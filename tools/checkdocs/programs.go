package main

import (
	_ "embed"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// ownPrograms are this repository's programs. checkdocs compares pages with their help.
var ownPrograms = map[string]bool{
	"dist-scheduler": true, "etcd-bench": true, "etcd-proxy": true, "k1m": true, "kube-gateway": true, "mem_etcd": true, "network-agent": true, "network-gateway": true, "node-sim": true,
	"warm-controller-manager": true,
}

// foreignFlags lists the flags of other programs, such as kube-apiserver, that pages mention. Each line
// contains a flag and the program.
//
//go:embed foreign-flags.txt
var foreignFlags string

// programs reads the help of this repository's programs.
type programs struct {
	bin  string
	help map[string]*help // cache, by command
}

// help contains the flags and the subcommands in the help of a command.
type help struct {
	flags       map[string]bool
	subcommands map[string]bool
}

func newPrograms(bin string) *programs { return &programs{bin: bin, help: map[string]*help{}} }

var (
	helpFlag       = regexp.MustCompile(`--[a-z0-9][A-Za-z0-9-]*`)
	helpSubcommand = regexp.MustCompile(`^  ([a-z][a-z0-9-]*)( +\S|$)`)
	helpHeading    = regexp.MustCompile(`^\S.*:$`)
	// usageWithSubcommand matches the usage of a command that has subcommands.
	usageWithSubcommand = regexp.MustCompile(`(?m)^(Usage:)? .*(\[command\]|<COMMAND>|\[COMMAND\])$|^Commands\b.*:$`)
	// otherHeading matches the headings of sections that do not list subcommands.
	otherHeading = regexp.MustCompile(`^(Usage|Examples|Aliases|Arguments|Options|(Global )?Flags):$`)
)

// helpFor returns the help of a command. path contains the program and its subcommands.
func (p *programs) helpFor(path []string) (*help, error) {
	key := strings.Join(path, " ")
	if h, ok := p.help[key]; ok {
		return h, nil
	}
	args := append(append([]string{}, path[1:]...), "--help")
	output, err := exec.Command(filepath.Join(p.bin, path[0]), args...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("running %s --help: %w; run make build first", key, err)
	}
	h := &help{flags: map[string]bool{"--help": true, "--version": true}, subcommands: map[string]bool{}}
	hasSubcommands := usageWithSubcommand.Match(output)
	listing, isDescribed := false, false
	for line := range strings.Lines(string(output)) {
		line = strings.TrimRight(line, "\n")
		// The description of a command comes before its usage, and may have indented examples.
		isDescribed = isDescribed || strings.HasPrefix(line, "Usage") || strings.HasPrefix(line, "Commands")
		switch match := helpSubcommand.FindStringSubmatch(line); {
		case helpHeading.MatchString(line):
			listing = hasSubcommands && isDescribed && !otherHeading.MatchString(line)
		case line == "" || !strings.HasPrefix(line, " "):
			listing = listing && line == ""
		case listing && match != nil:
			h.subcommands[match[1]] = true
		}
		for _, flag := range helpFlag.FindAllString(line, -1) {
			h.flags[flag] = true
		}
	}
	p.help[key] = h
	return h, nil
}

// checkArgs checks the arguments of a program. It returns a description of the first mistake, or "".
func (p *programs) checkArgs(name string, args []string) (string, error) {
	path := []string{name}
	var seen []string
	anySubcommand := false
	for _, arg := range args {
		h, err := p.helpFor(path)
		if err != nil {
			return "", err
		}
		if passThrough[strings.Join(path, " ")] || arg == "--" {
			break
		}
		if flag := flagName(arg); flag != "" {
			seen = append(seen, flag)
		} else if len(h.subcommands) > 0 && placeholder.MatchString(arg) {
			anySubcommand = true
		} else if h.subcommands[arg] {
			path = append(path, arg)
		} else if len(h.subcommands) > 0 && len(seen) == 0 && target.MatchString(arg) {
			return fmt.Sprintf("%s: no such command", strings.Join(append(path, arg), " ")), nil
		}
	}
	for _, flag := range seen {
		known, err := p.commandHasFlag(path, flag, anySubcommand)
		if err != nil {
			return "", err
		}
		if !known {
			return fmt.Sprintf("%s: no flag %s", strings.Join(path, " "), flag), nil
		}
	}
	return "", nil
}

// commandHasFlag reports whether a command has a flag. If subcommands is set, it also searches all
// subcommands.
func (p *programs) commandHasFlag(path []string, flag string, subcommands bool) (bool, error) {
	if subcommands {
		return p.treeHasFlag(path, flag)
	}
	h, err := p.helpFor(path)
	return err == nil && h.flags[flag], err
}

// placeholder matches an argument that stands for a name, such as COMMAND or NAME.
var placeholder = regexp.MustCompile(`^[A-Z][A-Z_]*$`)

// passThrough are the commands that pass their arguments to another program.
var passThrough = map[string]bool{"k1m kubectl": true}

// anyProgramHasFlag reports whether a flag is in foreign-flags.txt, or a command of this repository has
// it.
func (p *programs) anyProgramHasFlag(flag string) (bool, error) {
	for line := range strings.Lines(foreignFlags) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] == flag {
			return true, nil
		}
	}
	for name := range ownPrograms {
		known, err := p.treeHasFlag([]string{name}, flag)
		if known || err != nil {
			return known, err
		}
	}
	return false, nil
}

// treeHasFlag reports whether a command or one of its subcommands has a flag.
func (p *programs) treeHasFlag(path []string, flag string) (bool, error) {
	h, err := p.helpFor(path)
	if err != nil || h.flags[flag] {
		return err == nil, err
	}
	for name := range h.subcommands {
		if name == "help" || name == "completion" || slices.Contains(path, name) || passThrough[strings.Join(append(path, name), " ")] {
			continue
		}
		known, err := p.treeHasFlag(append(append([]string{}, path...), name), flag)
		if known || err != nil {
			return known, err
		}
	}
	return false, nil
}

var flagWord = regexp.MustCompile(`^\[?(--[a-z0-9][A-Za-z0-9-]*)`)

// flagName returns the flag with which a word begins, such as --name, or "".
func flagName(word string) string {
	if match := flagWord.FindStringSubmatch(word); match != nil {
		return match[1]
	}
	return ""
}
