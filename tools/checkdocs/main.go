// Checkdocs checks the Markdown pages of this repository against the
// repository: links and anchors exist, paths and make targets exist, and
// commands and flags that a page names exist in the help of the program.
//
//	go run ./tools/checkdocs [--bin DIR] [FILE.md...]
//
// Without files it checks every tracked page. It prints one line for each
// mistake, as FILE:LINE: MESSAGE, and exits with 1 if there is one.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

func main() {
	bin := flag.String("bin", "bin", "folder with this repository's programs")
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

// check reads pages, given as paths below root, and returns their mistakes in
// order of page and line.
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
