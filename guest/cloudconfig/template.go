package cloudconfig

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var templateLine = regexp.MustCompile(`^(?i:##\s*template:\s*jinja)[ \t\r]*$`)

// cutTemplate returns the user data without the line that makes it a template.
func cutTemplate(content []byte) (template bool, rest []byte) {
	line, rest, _ := bytes.Cut(trimStart(content), []byte("\n"))
	if !templateLine.Match(line) {
		return false, content
	}
	return true, rest
}

// opener begins what jinja replaces: a variable, a comment, or a block. closers close them.
var (
	opener  = regexp.MustCompile(`\{[{#%]`)
	closers = map[string]string{"{{": "}}", "{#": "#}", "{%": "%}"}
)

// render replaces the variables of a template. Of jinja, it supports variable names, comments and raw blocks,
// which users of Cluster API write. before is the number of lines before the text.
func render(text string, instance Instance, before int) (string, error) {
	r := &renderer{rest: text, values: instance.values()}
	for {
		found := opener.FindStringIndex(r.rest)
		if found == nil {
			r.out.WriteString(r.rest)
			return r.out.String(), nil
		}
		r.out.WriteString(r.rest[:found[0]])
		r.rest = r.rest[found[0]:]
		if problem := r.replace(); problem != "" {
			line := before + strings.Count(text[:len(text)-len(r.rest)], "\n")
			return "", &Error{fmt.Sprintf("line %d", line), problem}
		}
	}
}

// renderer is the progress of rendering a template.
type renderer struct {
	out    strings.Builder
	rest   string
	values map[string]string
}

// replace replaces what the rest begins with. If there is a problem, the rest is unchanged.
func (r *renderer) replace() (problem string) {
	kind := r.rest[:2]
	inside, rest, closed := strings.Cut(r.rest[2:], closers[kind])
	name := strings.TrimSpace(inside)
	switch {
	case !closed:
		return "the template's " + kind + " is not closed"
	case kind == "{#":
		r.rest = afterBlock(rest)
	case kind == "{{":
		value, ok := r.values[name]
		if !ok {
			return "the guest only supports the variables " + strings.Join(known(r.values), " and ")
		}
		r.out.WriteString(value)
		r.rest = rest
	case strings.Trim(name, "+- ") == "raw":
		return r.raw(strings.HasSuffix(name, "-"), rest)
	default:
		return "the guest does not support jinja blocks except raw"
	}
	return ""
}

var rawEnd = regexp.MustCompile(`\{%[-+]?\s*endraw\s*[-+]?%\}`)

// raw copies a block whose content is not a template. Its tags may trim whitespace.
func (r *renderer) raw(trimLeft bool, rest string) (problem string) {
	end := rawEnd.FindStringIndex(rest)
	if end == nil {
		return "the template's raw block is not closed"
	}
	content := rest[:end[0]]
	if trimLeft {
		content = strings.TrimLeft(content, " \t\r\n")
	}
	if strings.HasPrefix(rest[end[0]:], "{%-") {
		content = strings.TrimRight(content, " \t\r\n")
	}
	r.out.WriteString(content)
	r.rest = afterBlock(rest[end[1]:])
	return ""
}

// afterBlock returns what follows a block. As cloud-init configures jinja, the newline after a block is
// removed.
func afterBlock(rest string) string { return strings.TrimPrefix(rest, "\n") }

// values returns the variables by name.
func (i Instance) values() map[string]string {
	return map[string]string{
		"ds.meta_data.local_hostname": i.Name, "v1.local_hostname": i.Name, "local_hostname": i.Name,
		"ds.meta_data.instance_id": i.ID, "v1.instance_id": i.ID, "instance_id": i.ID,
	}
}

func known(values map[string]string) []string {
	var names []string
	for name := range values {
		if strings.HasPrefix(name, "ds.") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
