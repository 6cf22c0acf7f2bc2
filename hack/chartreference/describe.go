package main

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// reference collects the table of values.
type reference struct {
	definitions *yaml.Node
	table       strings.Builder
}

// describe sets the descriptions of all values below one, and adds them to the table.
func (r *reference) describe(path string, values, schema *yaml.Node) error {
	if path == "" {
		r.table.WriteString("\n| Value | Default | Description |\n|---|---|---|\n")
	}
	properties := entry(schema, "properties")
	for i := 0; i < len(values.Content); i += 2 {
		key, value := values.Content[i], values.Content[i+1]
		name := strings.TrimPrefix(path+"."+key.Value, ".")
		property := entry(properties, key.Value)
		if property == nil {
			return fmt.Errorf("%s is not in the schema", name)
		}
		text := comment(key.HeadComment)
		shared := r.resolve(property)
		if r.isShared(schema) { // the description of the definition applies to all values that share it
			text = first(text, literal(entry(property, "description")))
		} else {
			setDescription(property, text)
		}
		if text == "" || entry(property, "description") == nil {
			return fmt.Errorf("%s has no comment in values.yaml, or no description in the definition that it shares", name)
		}
		if entry(shared, "properties") == nil || len(value.Content) == 0 || r.isLeaf(property) {
			fmt.Fprintf(&r.table, "| `%s` | `%s` | %s |\n", name, oneLine(value), strings.ReplaceAll(text, "|", `\|`))
			continue
		}
		if err := r.describe(name, value, shared); err != nil {
			return err
		}
	}
	return nil
}

// resolve follows a reference to a definition.
func (r *reference) resolve(schema *yaml.Node) *yaml.Node {
	if name, ok := strings.CutPrefix(literal(entry(schema, "$ref")), "#/definitions/"); ok {
		return entry(r.definitions, name)
	}
	return schema
}

func (r *reference) isShared(schema *yaml.Node) bool {
	for i := 1; i < len(r.definitions.Content); i += 2 {
		if r.definitions.Content[i] == schema {
			return true
		}
	}
	return false
}

// isLeaf reports whether a value is described as a whole, since its content is that of Kubernetes.
func (r *reference) isLeaf(schema *yaml.Node) bool {
	return literal(entry(schema, "$ref")) == "#/definitions/resources"
}

// entry returns the value of a key, or nil.
func entry(mapping *yaml.Node, key string) *yaml.Node {
	if mapping == nil {
		return nil
	}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}

func literal(node *yaml.Node) string {
	if node == nil {
		return ""
	}
	return node.Value
}

func first(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}

func setDescription(schema *yaml.Node, text string) {
	if text == "" {
		return
	}
	if old := entry(schema, "description"); old != nil {
		old.Value = text
		return
	}
	schema.Content = append([]*yaml.Node{scalar("description"), scalar(text)}, schema.Content...)
}

func scalar(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
}

// comment returns the text of a comment in one line.
func comment(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			lines = nil // an earlier comment, which is separated by an empty line
			continue
		}
		lines = append(lines, strings.TrimPrefix(line, "#"))
	}
	return strings.Join(strings.Fields(strings.Join(lines, " ")), " ")
}
