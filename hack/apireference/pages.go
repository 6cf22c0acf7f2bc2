package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

const generated = "<!-- Generated from the CRDs and the schemas of provider specifications by \"make generate\". -->\n\n"

// names of the pages of groups.
var names = map[string]string{
	"machine.sapcloud.io":           "machine.md",
	"vm.metropolis.monogon.dev":     "vm.md",
	"infrastructure.millwright.dev": "infrastructure.md",
}

// pagesOf returns the pages by file.
func pagesOf(kinds []kind, specs []providerSpec) map[string][]byte {
	files, index := map[string][]byte{}, &bytes.Buffer{}
	index.WriteString(generated + "# API reference\n\n")
	index.WriteString("All fields of each kind. `kubectl explain KIND.FIELD` shows the same texts, and " +
		"[JSON schemas](../json-schemas.md) make editors complete and check the fields.\n")
	for _, group := range slices.Compact(groupsOf(kinds)) {
		p := page{seen: map[string]string{}}
		first := kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.group == group })]
		title := group + "/" + first.version
		fmt.Fprintf(&p.text, "%s# %s\n", generated, title)
		fmt.Fprintf(index, "\n## %s\n\n", title)
		for _, k := range kinds {
			if k.group != group {
				continue
			}
			p.kind(k)
			fmt.Fprintf(index, "* [%s](%s#%s): %s\n", k.names.Kind, names[group], anchor(k.names.Kind), firstSentence(k.schema.Description))
		}
		files[names[group]] = p.text.Bytes()
	}
	index.WriteString("\n## Provider specifications\n\n")
	for _, spec := range specs {
		p, name := page{seen: map[string]string{}}, "provider-spec-"+spec.driver+".md"
		fmt.Fprintf(&p.text, "%s# Provider specification of the driver %s\n\n%s [The `%[2]s` driver](../../drivers/%[2]s.md) describes their use.\n",
			generated, spec.driver, oneLine(spec.schema.Description))
		p.object("providerSpec", "##", spec.schema)
		fmt.Fprintf(index, "* [`%s`](%s): %s\n", spec.driver, name, firstSentence(spec.schema.Description))
		files[name] = p.text.Bytes()
	}
	files["README.md"] = index.Bytes()
	return files
}

func groupsOf(kinds []kind) []string {
	var groups []string
	for _, k := range kinds {
		groups = append(groups, k.group)
	}
	return groups
}

// page is a page that is being written.
type page struct {
	text bytes.Buffer
	// seen contains the headings of the objects on the page by their schemas. Each object is described once.
	seen map[string]string
}

func (p *page) kind(k kind) {
	name := k.names.Kind
	fmt.Fprintf(&p.text, "\n## %s\n\n%s\n\n", name, oneLine(k.schema.Description))
	list := append([]string{k.names.Plural}, k.names.ShortNames...)
	fmt.Fprintf(&p.text, "Names for kubectl: %s; categories: %s.\n", quoted(list), quoted(k.names.Categories))
	top := k.schema.DeepCopy()
	for _, field := range []string{"apiVersion", "kind", "metadata"} {
		delete(top.Properties, field)
	}
	if rules := rulesOf(top); rules != "" {
		fmt.Fprintf(&p.text, "\nRules: %s.\n", rules)
	}
	p.fields(name, top)
}

// object describes an object with fields in a section of its own.
func (p *page) object(heading, level string, schema *apiextensionsv1.JSONSchemaProps) {
	fmt.Fprintf(&p.text, "\n%s %s\n", level, heading)
	if rules := rulesOf(schema); rules != "" {
		fmt.Fprintf(&p.text, "\nRules: %s.\n", rules)
	}
	p.fields(heading, schema)
}

// fields writes the table of an object's fields, and then a section for each of them that is an object.
func (p *page) fields(heading string, schema *apiextensionsv1.JSONSchemaProps) {
	type section struct {
		heading string
		schema  *apiextensionsv1.JSONSchemaProps
	}
	var sections []section
	p.text.WriteString("\n| Field | Type | Description |\n|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		field := schema.Properties[name]
		text := describe(&field, slices.Contains(schema.Required, name))
		below, suffix := elements(&field)
		if len(below.Properties) > 0 {
			at := heading + separator(heading) + name + suffix
			key := fingerprint(below)
			where, known := p.seen[key]
			if !known {
				where = at
				p.seen[key] = at
				sections = append(sections, section{at, below})
			}
			text += fmt.Sprintf(" See [%s](#%s)", where, anchor(where))
		}
		fmt.Fprintf(&p.text, "| `%s` | %s | %s |\n", name, typeOf(&field), strings.TrimSpace(text))
	}
	for _, s := range sections {
		p.object(s.heading, "###", s.schema)
	}
}

// separator is between the heading of an object and the name of its field.
func separator(heading string) string {
	if strings.Contains(heading, " ") || strings.HasPrefix(heading, "providerSpec") {
		return "."
	}
	return " "
}

// elements returns the schema of the elements of nested lists and maps, and how they are written in a path.
func elements(schema *apiextensionsv1.JSONSchemaProps) (*apiextensionsv1.JSONSchemaProps, string) {
	switch {
	case schema.Items != nil && schema.Items.Schema != nil:
		below, suffix := elements(schema.Items.Schema)
		return below, "[]" + suffix
	case schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil:
		below, suffix := elements(schema.AdditionalProperties.Schema)
		return below, "[KEY]" + suffix
	}
	return schema, ""
}

// fingerprint is equal for objects with the same fields.
func fingerprint(schema *apiextensionsv1.JSONSchemaProps) string {
	same := schema.DeepCopy()
	same.Description, same.Default = "", nil
	text, err := json.Marshal(same)
	if err != nil {
		panic(err) // a schema that was parsed can be written
	}
	return string(text)
}

func typeOf(schema *apiextensionsv1.JSONSchemaProps) string {
	switch {
	case schema.XIntOrString && strings.Contains(schema.Pattern, "KMGTPE"):
		return "quantity"
	case schema.XIntOrString:
		return "integer or string"
	case schema.Format == "date-time":
		return "time"
	case schema.Type == "string" && strings.Contains(schema.Pattern, "ns)"):
		return "duration"
	case schema.Type == "array" && schema.Items != nil:
		return "list of " + plural(typeOf(schema.Items.Schema))
	case schema.Type == "object" && schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil:
		return "map of " + plural(typeOf(schema.AdditionalProperties.Schema))
	}
	return schema.Type
}

func plural(name string) string {
	switch {
	case strings.Contains(name, " of "):
		kind, of, _ := strings.Cut(name, " of ")
		return kind + "s of " + of
	case strings.HasSuffix(name, "y"):
		return strings.TrimSuffix(name, "y") + "ies"
	case strings.Contains(name, " or "):
		return "integers or strings"
	}
	return name + "s"
}

// describe returns the description of a field with its limits.
func describe(field *apiextensionsv1.JSONSchemaProps, required bool) string {
	var parts []string
	if required {
		parts = append(parts, "Required.")
	}
	if text := oneLine(field.Description); text != "" {
		parts = append(parts, text)
	}
	if limits := limitsOf(field); limits != "" {
		parts = append(parts, limits+".")
	}
	if rules := rulesOf(field); rules != "" && len(field.Properties) == 0 {
		parts = append(parts, "Rules: "+rules+".")
	}
	return strings.Join(parts, " ")
}

func limitsOf(field *apiextensionsv1.JSONSchemaProps) string {
	var limits []string
	add := func(name, value string) { limits = append(limits, name+": "+value) }
	if field.Default != nil {
		add("Default", "`"+string(field.Default.Raw)+"`")
	}
	if field.Minimum != nil {
		add("Minimum", fmt.Sprintf("%v", *field.Minimum))
	}
	if field.Maximum != nil {
		add("Maximum", fmt.Sprintf("%.0f", *field.Maximum))
	}
	for _, length := range []struct {
		name  string
		value *int64
	}{
		{"Minimum length", field.MinLength},
		{"Maximum length", field.MaxLength},
		{"Minimum number of elements", cmp.Or(field.MinItems, field.MinProperties)},
		{"Maximum number of elements", cmp.Or(field.MaxItems, field.MaxProperties)},
	} {
		if length.value != nil {
			add(length.name, fmt.Sprint(*length.value))
		}
	}
	return strings.Join(limits, ". ")
}

// rulesOf returns the messages of the validation rules.
func rulesOf(schema *apiextensionsv1.JSONSchemaProps) string {
	var messages []string
	for _, rule := range schema.XValidations {
		messages = append(messages, escaped(cmp.Or(rule.Message, rule.Rule)))
	}
	return strings.Join(messages, "; ")
}

func quoted(values []string) string { return "`" + strings.Join(values, "`, `") + "`" }

// noLetter matches what the anchor of a heading leaves out.
var noLetter = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

// anchor returns the anchor of a heading, as GitHub generates it.
func anchor(heading string) string {
	return strings.ReplaceAll(noLetter.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

// oneLine returns text for a cell of a table.
func oneLine(text string) string { return escaped(strings.Join(strings.Fields(text), " ")) }

func escaped(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;", "*", `\*`).Replace(text)
}

func firstSentence(text string) string {
	first, _, _ := strings.Cut(oneLine(text), ". ")
	return strings.TrimSuffix(first, ".")
}
