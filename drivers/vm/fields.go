package vm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// problems collects everything that is wrong with a provider specification, so that a
// user has to correct it only once.
type problems struct {
	texts []string
	// invalid tells that there is a problem of another kind than a size out of range.
	invalid bool
}

func (p *problems) add(path, format string, args ...any) {
	p.invalid = true
	p.addRange(path, format, args...)
}

// addRange adds a size that is out of its range.
func (p *problems) addRange(path, format string, args ...any) {
	text := path + ": " + fmt.Sprintf(format, args...)
	if len(text) > longestProblem {
		text = strings.ToValidUTF8(text[:longestProblem], "") + "…"
	}
	p.texts = append(p.texts, text)
}

// err is all problems as one error. A creation tells sizes that are out of their range
// from other mistakes; for other methods OutOfRange has another meaning.
func (p *problems) err(s sizes) error {
	if len(p.texts) == 0 {
		return nil
	}
	code := codes.InvalidArgument
	if s == sizesOutOfRange && !p.invalid {
		code = codes.OutOfRange
	}
	texts := p.texts
	if more := len(texts) - mostProblems; more > 0 {
		texts = append(slices.Clone(texts[:mostProblems]), fmt.Sprintf("and %d more", more))
	}
	return status.Error(code, strings.Join(texts, "; "))
}

const (
	// mostProblems are named in a message, which becomes part of a Machine's status.
	mostProblems = 20
	// longestProblem is how long the text of one may be, in bytes: it may quote what
	// stands in the specification.
	longestProblem = 500
)

// sizes says which code a size out of its range has.
type sizes int

const (
	sizesInvalid sizes = iota
	sizesOutOfRange
)

// object is a JSON object whose fields are read one by one. What is wrong with a field
// is noted, and the field then reads as if it were absent.
type object struct {
	path     string
	values   map[string]any
	known    []string
	problems *problems
}

// decode reads a JSON object.
func decode(raw []byte, path string, p *problems) *object {
	o := &object{path: path, problems: p}
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
		p.add(path, "is not JSON")
	default:
		o.values = o.asObject(path, value)
	}
	return o
}

// at is the path of a field.
func (o *object) at(name string) string { return o.path + "." + name }

// get returns a field's value. Null is the same as absent.
func (o *object) get(name string) (any, bool) {
	o.known = append(o.known, name)
	value := o.values[name]
	return value, value != nil
}

func (o *object) wrongKind(path, want string, got any) {
	kinds := map[string]string{
		"bool": "true or false", "string": "a text", "json.Number": "a number", "[]interface {}": "a list",
		"map[string]interface {}": "an object", "<nil>": "null",
	}
	o.problems.add(path, "must be %s, not %s", want, kinds[fmt.Sprintf("%T", got)])
}

func (o *object) asObject(path string, value any) map[string]any {
	values, ok := value.(map[string]any)
	if !ok {
		o.wrongKind(path, "an object", value)
	}
	return values
}

func (o *object) asText(path string, value any) string {
	text, ok := value.(string)
	if !ok {
		o.wrongKind(path, "a text", value)
	}
	return text
}

// text returns a text. Absent, it is empty.
func (o *object) text(name string) string {
	value, ok := o.get(name)
	if !ok {
		return ""
	}
	return o.asText(o.at(name), value)
}

// between returns a whole number within a range. Absent, it is 0.
func (o *object) between(name string, least, most int64) int64 {
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
		o.problems.add(o.at(name), "must be a whole number")
		return 0
	case n < least || n > most:
		o.problems.addRange(o.at(name), "%d is not between %d and %d", n, least, most)
		return 0
	}
	return n
}

// object returns an object, nil if it is absent.
func (o *object) object(name string) *object {
	value, ok := o.get(name)
	if !ok {
		return nil
	}
	path := o.at(name)
	return &object{path: path, values: o.asObject(path, value), problems: o.problems}
}

// texts returns an object that holds only texts.
func (o *object) texts(name string) map[string]string {
	inner := o.object(name)
	if inner == nil {
		return nil
	}
	texts := make(map[string]string, len(inner.values))
	for _, key := range slices.Sorted(maps.Keys(inner.values)) {
		texts[key] = o.asText(fmt.Sprintf("%s[%q]", inner.path, key), inner.values[key])
	}
	return texts
}

// list returns a list of texts.
func (o *object) list(name string) []string {
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

// finish notes the fields that nobody asked for. It is called when all have been read.
func (o *object) finish() {
	for _, name := range slices.Sorted(maps.Keys(o.values)) {
		if slices.Contains(o.known, name) {
			continue
		}
		if near := nearest(name, o.known); near != "" {
			o.problems.add(o.at(name), "is not known (is %s meant?)", near)
		} else {
			o.problems.add(o.at(name), "is not known (known: %s)", strings.Join(slices.Sorted(slices.Values(o.known)), ", "))
		}
	}
}

// slips is how many letters a name may differ by to be taken for another one.
const slips = 2

// nearest returns the name that was probably meant, "" if none is near.
func nearest(name string, names []string) string {
	if len(name) > 64 {
		return ""
	}
	best, least := "", slips+1
	for _, candidate := range names {
		if d := distance(strings.ToLower(name), strings.ToLower(candidate)); d < least && d < len(candidate) {
			best, least = candidate, d
		}
	}
	return best
}

// distance counts the letters to insert, remove or replace to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
