package language

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// text is a piece of a file that a person reads.
type text struct {
	line int
	// name is set for the name of something that the file declares, split into its words.
	name  bool
	words string
}

// textsOf returns what a person reads in a file: of Go files the comments, the sentences in string
// literals, and the declared names; of Markdown files everything except code; of other files everything.
// Generated files have none, since their text comes from the files they are generated from.
func textsOf(path, source string) ([]text, error) {
	switch filepath.Ext(path) {
	case ".go":
		return textsOfGo(path, source)
	case ".md":
		return textsOfMarkdown(source), nil
	default:
		return paragraphsOf(source), nil
	}
}

func textsOfGo(path, source string) ([]text, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(file) {
		return nil, err
	}
	var texts []text
	add := func(pos token.Pos, name bool, words string) {
		texts = append(texts, text{line: set.Position(pos).Line, name: name, words: words})
	}
	for _, group := range file.Comments {
		add(group.Pos(), false, withoutCodeBlocks(group.Text()))
	}
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.Field:
			addNames(add, node.Names)
		case *ast.BasicLit:
			if words, err := strconv.Unquote(node.Value); err == nil && node.Kind == token.STRING && strings.Contains(words, " ") {
				add(node.Pos(), false, words)
			}
		case *ast.FuncDecl:
			addNames(add, []*ast.Ident{node.Name})
		case *ast.TypeSpec:
			addNames(add, []*ast.Ident{node.Name})
		case *ast.ValueSpec:
			addNames(add, node.Names)
		default:
			addVariables(add, node)
		}
		return true
	})
	return texts, nil
}

// addVariables adds the variables that a statement declares.
func addVariables(add adder, node ast.Node) {
	switch node := node.(type) {
	case *ast.AssignStmt:
		if node.Tok == token.DEFINE {
			addExpressions(add, node.Lhs)
		}
	case *ast.RangeStmt:
		if node.Tok == token.DEFINE {
			addExpressions(add, []ast.Expr{node.Key, node.Value})
		}
	}
}

type adder func(pos token.Pos, name bool, words string)

func addNames(add adder, names []*ast.Ident) {
	for _, name := range names {
		add(name.Pos(), true, wordsOf(name.Name))
	}
}

func addExpressions(add adder, expressions []ast.Expr) {
	for _, expression := range expressions {
		if name, ok := expression.(*ast.Ident); ok {
			addNames(add, []*ast.Ident{name})
		}
	}
}

// wordsOf splits a name at its capitals: the words of "maxSurge" are "max surge".
func wordsOf(name string) string {
	var words strings.Builder
	for i, r := range name {
		if i > 0 && (unicode.IsUpper(r) || r == '_') {
			words.WriteByte(' ')
		}
		words.WriteRune(unicode.ToLower(r))
	}
	return words.String()
}

// withoutCodeBlocks removes the indented lines of a doc comment.
func withoutCodeBlocks(comment string) string {
	var kept []string
	for line := range strings.Lines(comment) {
		if !strings.HasPrefix(line, "\t") {
			kept = append(kept, line)
		}
	}
	return withoutCode(strings.Join(kept, ""))
}

var code = regexp.MustCompile("`[^`]*`" + `|\]\([^)]*\)|https?://\S+`)

// withoutCode removes code in backquotes and the addresses of links.
func withoutCode(words string) string { return code.ReplaceAllString(words, "`code`") }

// paragraphsOf returns the paragraphs of a file without the markers of comments, since a term may be split between two
// lines.
func paragraphsOf(source string) []text {
	paragraphs := []text{{line: 1}}
	for _, line := range textsOfLines(source) {
		words := commentMarker.ReplaceAllString(line.words, "")
		if strings.TrimSpace(words) == "" {
			paragraphs = append(paragraphs, text{line: line.line + 1})
			continue
		}
		paragraphs[len(paragraphs)-1].words += words + "\n"
	}
	return paragraphs
}

// commentMarker matches the beginning of a comment's line, in files that are neither Go nor Markdown.
var commentMarker = regexp.MustCompile(`^\s*(//|#+)\s*`)

// textsOfMarkdown returns the paragraphs of a page, since a term may be split between two lines.
func textsOfMarkdown(source string) []text {
	paragraphs := []text{{line: 1}}
	fenced := false
	for _, line := range textsOfLines(source) {
		fence := strings.HasPrefix(strings.TrimSpace(line.words), "```")
		if fence {
			fenced = !fenced
		}
		last := &paragraphs[len(paragraphs)-1]
		switch {
		case fenced || fence || strings.TrimSpace(line.words) == "":
			paragraphs = append(paragraphs, text{line: line.line + 1})
		default:
			last.words += line.words + "\n"
		}
	}
	for i := range paragraphs {
		paragraphs[i].words = withoutCode(paragraphs[i].words)
	}
	return paragraphs
}

func textsOfLines(source string) []text {
	var texts []text
	lines := bufio.NewScanner(strings.NewReader(source))
	lines.Buffer(nil, len(source)+1)
	for n := 1; lines.Scan(); n++ {
		texts = append(texts, text{line: n, words: lines.Text()})
	}
	return texts
}
