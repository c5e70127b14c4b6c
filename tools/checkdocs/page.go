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

// page is what one Markdown file refers to.
type page struct {
	// path is the file, below the root of the repository.
	path string
	// links are the destinations of links and pictures.
	links []reference
	// code are the lines of code blocks and the contents of code spans.
	code []reference
	// anchors are the fragments that links to this page may use.
	anchors map[string]bool
}

// reference is a text at a line of a page.
type reference struct {
	text string
	line int
	// span is set for code within a sentence, which may be a lone flag or path.
	span bool
}

// readPage parses the file path below root.
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
		// A block of text is a drawing or a transcript, not commands.
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

// lineOf returns the line at which node begins, or before if node does not know.
func lineOf(source []byte, node ast.Node, before int) int {
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
		return before
	}
	return 1 + bytes.Count(source[:offset], []byte("\n"))
}

// textOf returns the text within node without its markup.
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

// anchor returns the fragment that GitHub gives to a heading.
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
