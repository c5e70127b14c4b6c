// Command checkdocs checks that the Markdown pages of this repository mention only what exists: files and
// headings in links, paths, make targets, and the commands and flags of this repository's programs.
//
//	go run ./tools/checkdocs [--bin DIR] [FILE.md...]
//
// Without files it checks all pages that git tracks. It prints one line for each mistake, as
// FILE:LINE: MESSAGE, and exits with code 1 if there is a mistake.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

func main() {
	bin := flag.String("bin", "bin", "directory with this repository's programs")
	flag.Parse()
	pages := flag.Args()
	if len(pages) == 0 {
		tracked, err := exec.Command("git", "ls-files", "*.md").Output()
		if err != nil {
			fmt.Fprintln(os.Stderr, "checkdocs: git ls-files:", err)
			os.Exit(1)
		}
		pages = strings.Fields(string(tracked))
	}
	mistakes, err := check(".", *bin, pages)
	if err != nil {
		fmt.Fprintln(os.Stderr, "checkdocs:", err)
		os.Exit(1)
	}
	for _, m := range mistakes {
		fmt.Println(m)
	}
	if len(mistakes) > 0 {
		os.Exit(1)
	}
}

// check returns the mistakes in pages. The pages are paths relative to root.
func check(root, bin string, pages []string) ([]mistake, error) {
	targets, err := makeTargets(root)
	if err != nil {
		return nil, err
	}
	c := &checker{root: root, targets: targets, programs: newPrograms(bin), pages: map[string]*page{}}
	for _, path := range pages {
		p, err := c.page(path)
		if err != nil {
			return nil, err
		}
		if err := c.checkPage(p); err != nil {
			return nil, err
		}
	}
	return c.mistakes, nil
}
