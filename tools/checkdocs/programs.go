package main

import (
	_ "embed"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// owned are this repository's programs, whose help is checked.
var owned = map[string]bool{
	"dist-scheduler": true, "etcd-bench": true, "etcd-proxy": true, "k1m": true, "mem_etcd": true,
}

// foreignFlags lists the flags of other programs that pages name, such as
// kube-apiserver's and etcd's: a flag and the program in each line.
//
//go:embed foreign-flags.txt
var foreignFlags string

// programs reads the help of this repository's programs, each once.
type programs struct {
	bin  string
	help map[string]*help
}

// help is what a command's --help lists.
type help struct {
	flags       map[string]bool
	subcommands map[string]bool
}

func newPrograms(bin string) *programs { return &programs{bin: bin, help: map[string]*help{}} }

var (
	helpFlag       = regexp.MustCompile(`--[a-z0-9][A-Za-z0-9-]*`)
	helpSubcommand = regexp.MustCompile(`^  ([a-z][a-z0-9-]*)( +\S|$)`)
	helpHeading    = regexp.MustCompile(`^\S.*:$`)
	// helpNoCommands matches the headings of sections that list something else.
	helpNoCommands = regexp.MustCompile(`^(Usage|Examples|Aliases|Arguments|Options|(Global )?Flags):$`)
)

// of returns the help of the command that path names: a program and its
// subcommands.
func (p *programs) of(path []string) (*help, error) {
	key := strings.Join(path, " ")
	if h, ok := p.help[key]; ok {
		return h, nil
	}
	args := append(append([]string{}, path[1:]...), "--help")
	output, err := exec.Command(filepath.Join(p.bin, path[0]), args...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s --help: %w; run make build first", key, err)
	}
	h := &help{flags: map[string]bool{"--help": true, "--version": true}, subcommands: map[string]bool{}}
	listing := false
	for line := range strings.Lines(string(output)) {
		line = strings.TrimRight(line, "\n")
		switch match := helpSubcommand.FindStringSubmatch(line); {
		case helpHeading.MatchString(line):
			listing = !helpNoCommands.MatchString(line)
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

// mistake says what is wrong with a command line of program name, or "".
func (p *programs) mistake(name string, args []string) (string, error) {
	path := []string{name}
	var seen []string
	anyCommand := false
	for _, arg := range args {
		h, err := p.of(path)
		if err != nil {
			return "", err
		}
		if passesOn[strings.Join(path, " ")] || arg == "--" {
			break
		}
		if flag := flagName(arg); flag != "" {
			seen = append(seen, flag)
		} else if len(h.subcommands) > 0 && placeholder.MatchString(arg) {
			anyCommand = true
		} else if h.subcommands[arg] {
			path = append(path, arg)
		} else if len(h.subcommands) > 0 && len(seen) == 0 && target.MatchString(arg) {
			return fmt.Sprintf("%s: no such command", strings.Join(append(path, arg), " ")), nil
		}
	}
	for _, flag := range seen {
		known, err := p.has(path, flag, anyCommand)
		if err != nil {
			return "", err
		}
		if !known {
			return fmt.Sprintf("%s: no flag %s", strings.Join(path, " "), flag), nil
		}
	}
	return "", nil
}

// has says whether the command at path has flag, or, with below, a command below it.
func (p *programs) has(path []string, flag string, below bool) (bool, error) {
	if below {
		return p.knownBelow(path, flag)
	}
	h, err := p.of(path)
	return err == nil && h.flags[flag], err
}

// placeholder is an argument that stands for a name that the reader chooses.
var placeholder = regexp.MustCompile(`^[A-Z][A-Z_]*$`)

// passesOn are commands whose arguments belong to another program.
var passesOn = map[string]bool{"k1m kubectl": true}

// knownAnywhere says whether a command of this repository, or a program that
// foreign-flags.txt names, has the flag.
func (p *programs) knownAnywhere(flag string) (bool, error) {
	for line := range strings.Lines(foreignFlags) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] == flag {
			return true, nil
		}
	}
	for name := range owned {
		known, err := p.knownBelow([]string{name}, flag)
		if known || err != nil {
			return known, err
		}
	}
	return false, nil
}

func (p *programs) knownBelow(path []string, flag string) (bool, error) {
	h, err := p.of(path)
	if err != nil || h.flags[flag] {
		return err == nil, err
	}
	for name := range h.subcommands {
		if name == "help" || name == "completion" || passesOn[strings.Join(append(path, name), " ")] {
			continue
		}
		known, err := p.knownBelow(append(append([]string{}, path...), name), flag)
		if known || err != nil {
			return known, err
		}
	}
	return false, nil
}

var flagWord = regexp.MustCompile(`^\[?(--[a-z0-9][A-Za-z0-9-]*)`)

// flagName returns the flag that a word begins with, as --name, or "".
func flagName(word string) string {
	if match := flagWord.FindStringSubmatch(word); match != nil {
		return match[1]
	}
	return ""
}
