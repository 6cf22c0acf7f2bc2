package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// page is the front matter of a page.
type page struct {
	Title string `json:"title"`
	// LinkTitle is the title in the index. If empty, it is Title.
	LinkTitle string `json:"linkTitle,omitempty"`
	// Weight is the position of the page in the index, from 1. Zero means that the page is not in the index.
	Weight int `json:"weight,omitempty"`
	// Group is the name of the group of pages in its section. It is empty in a section without groups.
	Group string `json:"group,omitempty"`
}

var (
	// indexLine matches a heading of a section, the name of a group of pages, or a link to a page.
	indexLine = regexp.MustCompile(`(?m)^## (.+)$|^([A-Z][\w ]+):$|^\* \[(.+?)\]\(([\w/.-]+\.md)\)`)
	heading   = regexp.MustCompile(`(?m)^# (.+)$`)
	mermaid   = regexp.MustCompile("(?ms)^```mermaid\n(.*?)^```\n")
)

// readIndex returns the front matter of the pages that an index lists, and of their sections, by path.
func readIndex(text string) map[string]page {
	pages := map[string]page{}
	section, group, weight := "", "", 0
	for _, match := range indexLine.FindAllStringSubmatch(text, -1) {
		weight++
		switch {
		case match[1] != "":
			section, group = match[1], ""
		case match[2] != "":
			group = match[2]
		default:
			pages[match[4]] = page{LinkTitle: plain(match[3]), Weight: weight, Group: group}
			if top := path.Join(path.Dir(match[4]), "_index.md"); pages[top].Title == "" {
				pages[top] = page{Title: section, Weight: weight}
			}
		}
	}
	return pages
}

// plain removes the marks of code from a title.
func plain(title string) string { return strings.ReplaceAll(title, "`", "") }

// prepare writes the pages below docs to a directory, as the content of a Hugo site: with front matter, and with pictures
// in place of Mermaid diagrams. A README.md becomes the page of its directory.
func prepare(ctx context.Context, docs, directory string) error {
	text, err := os.ReadFile(filepath.Join(docs, "README.md"))
	if err != nil {
		return err
	}
	index := readIndex(string(text))
	painter, err := newPainter(ctx)
	if err != nil {
		return err
	}
	defer painter.close()
	err = fs.WalkDir(os.DirFS(docs), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(filepath.Join(docs, name))
		if err != nil {
			return err
		}
		if path.Ext(name) == ".md" {
			to := path.Join(path.Dir(name), strings.ReplaceAll(path.Base(name), "README.md", "_index.md"))
			if text, err = render(ctx, painter, string(text), index[name]); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			delete(index, to)
			name = to
		}
		return write(filepath.Join(directory, name), text)
	})
	for name, front := range index {
		if path.Base(name) == "_index.md" {
			text, jsonErr := json.Marshal(front)
			err = errors.Join(err, jsonErr, write(filepath.Join(directory, name), text))
		}
	}
	return err
}

// render returns a page with its front matter, and with pictures.
func render(ctx context.Context, painter *painter, text string, front page) ([]byte, error) {
	title := heading.FindStringSubmatch(text)
	if title == nil {
		return nil, errors.New("the page has no title")
	}
	front.Title = plain(title[1])
	var failed error
	text = mermaid.ReplaceAllStringFunc(text, func(block string) string {
		picture, err := painter.paint(ctx, mermaid.FindStringSubmatch(block)[1])
		failed = errors.Join(failed, err)
		return "<figure class=\"diagram\">" + picture + "</figure>\n"
	})
	header, err := json.Marshal(front)
	return append(append(header, '\n', '\n'), text...), errors.Join(failed, err)
}

func write(file string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}
