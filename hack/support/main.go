// Command support writes docs/reference/supported-versions.md, the page with the supported versions, from support.yaml in the same
// directory.
//
//	support DIRECTORY
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// matrix is the content of support.yaml, which describes the fields.
type matrix struct {
	Components []component `json:"components"`
}

type component struct {
	ID       string   `json:"id"`
	Name     string   `json:"name"`
	Required string   `json:"required"`
	Tested   []string `json:"tested"`
	Notes    string   `json:"notes,omitempty"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "support:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("expected one argument, the directory of support.yaml")
	}
	versions, err := read(args[0])
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(args[0], "supported-versions.md"), []byte(versions.page()), 0o644)
}

func read(dir string) (*matrix, error) {
	file := filepath.Join(dir, "support.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	versions := &matrix{}
	if err := yaml.UnmarshalStrict(text, versions); err != nil {
		return nil, fmt.Errorf("cannot parse %s: %w", file, err)
	}
	return versions, nil
}

const introduction = `<!-- Generated from support.yaml by "make generate". -->

# Supported versions

Millwright requires at least these versions. Its tests run with the versions in the third column.

| Component | Required | Tested | Notes |
|---|---|---|---|
`

// page returns the page as Markdown.
func (m *matrix) page() string {
	text := introduction
	for _, c := range m.Components {
		text += strings.ReplaceAll(fmt.Sprintf("| %s | %s | %s | %s |\n", c.Name, c.Required, strings.Join(c.Tested, ", "), c.Notes), "  |", " |")
	}
	return text
}
