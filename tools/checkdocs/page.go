package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// page contains the references in one Markdown file.
type page struct {
	// path is relative to the root of the repository.
	path string
	// links are the destinations of links and images.
	links []reference
	// code contains the lines of code blocks and the contents of code spans.
	code []reference
	// anchors are the anchors of the headings of this page, to which links can refer.
	anchors map[string]bool
}

// reference is a text in a line of a page.
type reference struct {
	text string
	line int
	// span is true for a code span, which can be a single flag or path instead of a command.
	span bool
}

// readPage parses a file. Its path is relative to root.
func readPage(root, path string) (*page, error) {
	source, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		return nil, err
	}
	p := &page{path: path, anchors: map[string]bool{}}
	markdown := goldmark.New(goldmark.WithExtensions(extension.GFM))
	document := markdown.Parser().Parse(text.NewReader(source))
	line := 1
	err = ast.Walk(document, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if entering {
			line = lineOf(source, node, line)
			p.visit(source, node, line)
		}
		return ast.WalkContinue, nil
	})
	return p, err
}

// visit adds the references in a node of the syntax tree, without its children.
func (p *page) visit(source []byte, node ast.Node, line int) {
	switch node := node.(type) {
	case *ast.Link:
		p.links = append(p.links, reference{text: string(node.Destination), line: line})
	case *ast.Image:
		p.links = append(p.links, reference{text: string(node.Destination), line: line})
	case *ast.CodeSpan:
		p.code = append(p.code, reference{text: textOf(source, node), line: line, span: true})
	case *ast.Heading:
		p.anchors[anchor(textOf(source, node))] = true
	case *ast.FencedCodeBlock:
		// Blocks with the language "text" contain drawings or output, not commands.
		if string(node.Language(source)) == "text" {
			return
		}
		for i := range node.Lines().Len() {
			segment := node.Lines().At(i)
			content := strings.TrimRight(string(segment.Value(source)), "\n")
			p.code = append(p.code, reference{text: content, line: line + i})
		}
	}
}

// lineOf returns the line at which a node begins. If the node has no position, it returns previous, the
// line of the node before.
func lineOf(source []byte, node ast.Node, previous int) int {
	offset := -1
	switch {
	case node.Type() == ast.TypeBlock && node.Lines() != nil && node.Lines().Len() > 0:
		offset = node.Lines().At(0).Start
	case node.Kind() == ast.KindText:
		offset = node.(*ast.Text).Segment.Start
	case node.Type() == ast.TypeInline && node.FirstChild() != nil && node.FirstChild().Kind() == ast.KindText:
		offset = node.FirstChild().(*ast.Text).Segment.Start
	}
	if offset < 0 {
		return previous
	}
	return 1 + bytes.Count(source[:offset], []byte("\n"))
}

// textOf returns the text of a node without markup.
func textOf(source []byte, node ast.Node) string {
	var b strings.Builder
	_ = ast.Walk(node, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if t, ok := n.(*ast.Text); ok && entering {
			b.Write(t.Segment.Value(source))
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

// anchor returns the anchor that GitHub generates for a heading.
func anchor(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' || r == '-':
			b.WriteRune(r)
		case r == ' ':
			b.WriteByte('-')
		}
	}
	return b.String()
}
