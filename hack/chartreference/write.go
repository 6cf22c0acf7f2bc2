package main

import (
	"encoding/json"
	"strings"

	"go.yaml.in/yaml/v3"
)

// width is the number of characters up to which a value of the schema is written on one line.
const width = 120

// write writes a node as JSON, with the keys in their order.
func write(into *strings.Builder, node *yaml.Node, indent int) {
	text := oneLine(node)
	if len(text)+2*indent <= width || len(node.Content) == 0 {
		into.WriteString(text)
		return
	}
	opening, closing, step := "[", "]", 1
	if node.Kind == yaml.MappingNode {
		opening, closing, step = "{", "}", 2
	}
	into.WriteString(opening)
	for i := 0; i < len(node.Content); i += step {
		if i > 0 {
			into.WriteByte(',')
		}
		into.WriteString("\n" + strings.Repeat("  ", indent+1))
		if step == 2 {
			into.WriteString(oneLine(node.Content[i]) + ": ")
		}
		write(into, node.Content[i+step-1], indent+1)
	}
	into.WriteString("\n" + strings.Repeat("  ", indent) + closing)
}

// oneLine returns a node as JSON on one line.
func oneLine(node *yaml.Node) string {
	var parts []string
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i < len(node.Content); i += 2 {
			parts = append(parts, oneLine(node.Content[i])+": "+oneLine(node.Content[i+1]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case yaml.SequenceNode:
		for _, element := range node.Content {
			parts = append(parts, oneLine(element))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	if node.Tag != "!!str" {
		return node.Value
	}
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(node.Value); err != nil {
		panic(err) // text can always be written
	}
	return strings.TrimSpace(text.String())
}
