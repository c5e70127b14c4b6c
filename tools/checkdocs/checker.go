package main

import (
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// mistake is a reference in a page to something that does not exist.
type mistake struct {
	page    string
	line    int
	message string
}

func (m mistake) String() string { return fmt.Sprintf("%s:%d: %s", m.page, m.line, m.message) }

// checker compares pages with a repository.
type checker struct {
	root     string
	targets  map[string]bool // targets of the Makefile
	programs *programs
	// pages caches parsed pages by path, because links refer to their anchors.
	pages    map[string]*page
	mistakes []mistake
}

func (c *checker) page(path string) (*page, error) {
	if p, ok := c.pages[path]; ok {
		return p, nil
	}
	p, err := readPage(c.root, path)
	if err == nil {
		c.pages[path] = p
	}
	return p, err
}

func (c *checker) checkPage(p *page) error {
	for _, link := range p.links {
		c.checkLink(p, link)
	}
	// A changelog mentions commands and flags that no longer exist.
	if path.Base(p.path) == "CHANGELOG.md" {
		return nil
	}
	for _, code := range p.code {
		if err := c.checkCode(p, code); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) report(p *page, at reference, format string, args ...any) {
	c.mistakes = append(c.mistakes, mistake{p.path, at.line, fmt.Sprintf(format, args...)})
}

// checkLink checks that the file of a link exists and, if the file is a page, that it has the heading of
// the fragment. It does not check links to other hosts.
func (c *checker) checkLink(p *page, link reference) {
	target, err := url.Parse(link.text)
	if err != nil {
		c.report(p, link, "link %q: %v", link.text, err)
		return
	}
	if target.Scheme != "" || target.Host != "" {
		return
	}
	file := p.path
	if target.Path != "" {
		file = path.Join(path.Dir(p.path), target.Path)
	}
	if _, err := os.Stat(filepath.Join(c.root, file)); err != nil {
		c.report(p, link, "link %s: no such file", link.text)
		return
	}
	if target.Fragment == "" || !strings.HasSuffix(file, ".md") {
		return
	}
	if to, err := c.page(file); err != nil || !to.anchors[target.Fragment] {
		c.report(p, link, "link %s: no such heading", link.text)
	}
}

// repositoryPath matches a path in the repository, without wildcards or a line number.
var repositoryPath = regexp.MustCompile(`^(\./)?(build|cmd|crates|deploy|docs|experiments|internal|pkg|proto|test|tools)/[A-Za-z0-9_./-]+$`)

// checkCode checks the commands in a line of code, or the single path or the flags in a code span.
func (c *checker) checkCode(p *page, code reference) error {
	words := strings.Fields(strings.TrimPrefix(strings.TrimSpace(code.text), "$ "))
	if code.span && len(words) == 1 && repositoryPath.MatchString(words[0]) && !hasPlaceholder(words[0]) {
		if _, err := os.Stat(filepath.Join(c.root, strings.TrimSuffix(words[0], "/..."))); err != nil {
			c.report(p, code, "%s: no such file", words[0])
		}
		return nil
	}
	if code.span && len(words) > 0 && strings.HasPrefix(words[0], "--") {
		return c.checkLoneFlags(p, code, words)
	}
	for _, command := range splitCommands(words) {
		if err := c.checkCommand(p, code, command); err != nil {
			return err
		}
	}
	return nil
}

// hasPlaceholder reports whether an element of a path is a placeholder, as in experiments/NAME.
func hasPlaceholder(path string) bool {
	for _, name := range strings.Split(path, "/") {
		if placeholder.MatchString(name) {
			return true
		}
	}
	return false
}

// splitCommands splits a line of shell code into its commands. It removes comments, and assignments before
// a command.
func splitCommands(words []string) [][]string {
	var all [][]string
	var command []string
	end := func() {
		if len(command) > 0 {
			all = append(all, command)
		}
		command = nil
	}
	for _, word := range words {
		word = substitution.ReplaceAllString(word, "")
		switch {
		case strings.HasPrefix(word, "#"):
			end()
			return all
		case word == "|" || word == "&&" || word == ";" || word == "&" || word == "||":
			end()
		case len(command) == 0 && (assignment.MatchString(word) || word == "sudo" || word == "export"):
		default:
			command = append(command, strings.TrimRight(word, ");"))
			if strings.HasSuffix(word, ";") {
				end()
			}
		}
	}
	end()
	return all
}

var (
	// substitution matches the beginning of NAME=$(COMMAND ...). It is removed, so that COMMAND is
	// checked.
	substitution = regexp.MustCompile(`^[A-Z][A-Z0-9_]*=\$\(`)
	assignment   = regexp.MustCompile(`^[A-Z][A-Z0-9_]*=`)
)

// checkCommand checks the targets of make, or the arguments of a program of this repository. It ignores
// other commands.
func (c *checker) checkCommand(p *page, code reference, command []string) error {
	name := path.Base(command[0])
	if name == "make" {
		for _, word := range command[1:] {
			if !target.MatchString(word) {
				break
			}
			if !c.targets[word] {
				c.report(p, code, "make %s: no such target", word)
			}
		}
		return nil
	}
	if !ownPrograms[name] || (command[0] != name && command[0] != "bin/"+name) {
		return nil
	}
	message, err := c.programs.checkArgs(name, command[1:])
	if message != "" {
		c.report(p, code, "%s", message)
	}
	return err
}

// checkLoneFlags checks that some program has each of the flags in a code span without a command.
func (c *checker) checkLoneFlags(p *page, code reference, words []string) error {
	for _, word := range words {
		name := flagName(word)
		if name == "" {
			continue
		}
		known, err := c.programs.anyProgramHasFlag(name)
		if err != nil {
			return err
		}
		if !known {
			c.report(p, code, "%s: no program has this flag", name)
		}
	}
	return nil
}

var (
	target     = regexp.MustCompile(`^[a-z][a-z-]*$`)
	targetLine = regexp.MustCompile(`(?m)^([a-z][a-z -]*):`)
)

// makeTargets returns the targets of the Makefile in root.
func makeTargets(root string) (map[string]bool, error) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		return nil, err
	}
	targets := map[string]bool{}
	for _, match := range targetLine.FindAllSubmatch(makefile, -1) {
		for _, name := range strings.Fields(string(match[1])) {
			targets[name] = true
		}
	}
	return targets, nil
}
