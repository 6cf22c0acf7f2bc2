// Package fields reads JSON objects field by field, and reports all problems at once.
package fields

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Object is a JSON object. A field with a problem reads as if it were absent.
type Object struct {
	path     string
	values   map[string]any
	known    []string
	problems *Problems
}

// Decode reads a JSON object. The path is its name in problems. Empty text is an empty
// object.
func Decode(raw []byte, path string, p *Problems) *Object {
	o := &Object{path: path, problems: p}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var value any
	err := decoder.Decode(&value)
	if err == nil {
		_, err = decoder.Token()
	}
	switch {
	case errors.Is(err, io.EOF) && value == nil && len(bytes.TrimSpace(raw)) == 0:
	case !errors.Is(err, io.EOF):
		o.Problem("", "is not JSON")
	default:
		o.values = o.asObject(path, value)
	}
	return o
}

// Problem adds a problem with a field; an empty name means the object itself.
func (o *Object) Problem(name, format string, args ...any) {
	o.problems.add(o.at(name), true, format, args...)
}

// OutOfRange adds the problem that a size is out of its range.
func (o *Object) OutOfRange(name, format string, args ...any) {
	o.problems.add(o.at(name), false, format, args...)
}

// HasProblem reports whether there is a problem with a field.
func (o *Object) HasProblem(name string) bool {
	return slices.ContainsFunc(o.problems.texts, func(text string) bool { return strings.HasPrefix(text, o.at(name)+":") })
}

// Ignore accepts fields that are not read.
func (o *Object) Ignore(names ...string) { o.known = append(o.known, names...) }

// Has reports whether a field is set.
func (o *Object) Has(name string) bool { return o.values[name] != nil }

// at returns the path of a field.
func (o *Object) at(name string) string {
	if name == "" {
		return o.path
	}
	return o.path + "." + name
}

// get returns the value of a field. Null is the same as absent.
func (o *Object) get(name string) (any, bool) {
	o.known = append(o.known, name)
	value := o.values[name]
	return value, value != nil
}

func (o *Object) wrongKind(path, want string, got any) {
	kinds := map[string]string{
		"bool": "true or false", "string": "a text", "json.Number": "a number", "[]interface {}": "a list",
		"map[string]interface {}": "an object", "<nil>": "null",
	}
	o.problems.add(path, true, "must be %s, not %s", want, kinds[fmt.Sprintf("%T", got)])
}

func (o *Object) asObject(path string, value any) map[string]any {
	values, ok := value.(map[string]any)
	if !ok {
		o.wrongKind(path, "an object", value)
	}
	return values
}

func (o *Object) asText(path string, value any) string {
	text, ok := value.(string)
	if !ok {
		o.wrongKind(path, "a text", value)
	}
	return text
}

// Text returns a text; empty if the field is absent.
func (o *Object) Text(name string) string {
	value, ok := o.get(name)
	if !ok {
		return ""
	}
	return o.asText(o.at(name), value)
}

// Between returns a whole number within a range; 0 if the field is absent.
func (o *Object) Between(name string, least, most int64) int64 {
	value, ok := o.get(name)
	if !ok {
		return 0
	}
	number, ok := value.(json.Number)
	if !ok {
		o.wrongKind(o.at(name), "a number", value)
		return 0
	}
	n, err := number.Int64()
	switch {
	case err != nil:
		o.Problem(name, "must be a whole number")
		return 0
	case n < least || n > most:
		o.OutOfRange(name, "%d is not between %d and %d", n, least, most)
		return 0
	}
	return n
}

// Object returns an object; nil if the field is absent.
func (o *Object) Object(name string) *Object {
	value, ok := o.get(name)
	if !ok {
		return nil
	}
	path := o.at(name)
	return &Object{path: path, values: o.asObject(path, value), problems: o.problems}
}

// Texts returns an object whose values are texts; nil if the field is absent.
func (o *Object) Texts(name string) map[string]string {
	inner := o.Object(name)
	if inner == nil {
		return nil
	}
	texts := make(map[string]string, len(inner.values))
	for _, key := range slices.Sorted(maps.Keys(inner.values)) {
		texts[key] = o.asText(fmt.Sprintf("%s[%q]", inner.path, key), inner.values[key])
	}
	return texts
}

// List returns a list of texts; nil if the field is absent.
func (o *Object) List(name string) []string {
	value, ok := o.get(name)
	if !ok {
		return nil
	}
	values, ok := value.([]any)
	if !ok {
		o.wrongKind(o.at(name), "a list", value)
		return nil
	}
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = o.asText(fmt.Sprintf("%s[%d]", o.at(name), i), v)
	}
	return texts
}

// Finish reports unknown fields: those that were not read. Call it after all others.
func (o *Object) Finish() {
	for _, name := range slices.Sorted(maps.Keys(o.values)) {
		if slices.Contains(o.known, name) {
			continue
		}
		if near := nearest(name, o.known); near != "" {
			o.Problem(name, "is not known (is %s meant?)", near)
		} else {
			o.Problem(name, "is not known (known: %s)", strings.Join(slices.Sorted(slices.Values(o.known)), ", "))
		}
	}
}

// Named returns a text that a function of package validation accepts; empty if the field
// is absent.
func (o *Object) Named(name string, check func(string) []string) string {
	text := o.Text(name)
	if text == "" {
		return ""
	}
	if wrong := check(text); len(wrong) > 0 {
		o.Problem(name, "%s", strings.Join(wrong, ", "))
		return ""
	}
	return text
}

// OneOf returns one of some texts; empty if the field is absent.
func (o *Object) OneOf(name string, texts ...string) string {
	text := o.Text(name)
	if text == "" || slices.Contains(texts, text) {
		return text
	}
	o.Problem(name, "%q is none of %s", text, strings.Join(texts, ", "))
	return ""
}
