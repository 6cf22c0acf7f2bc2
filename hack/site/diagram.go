package main

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-graphviz"
)

// painter renders Mermaid flowcharts as SVG, with Graphviz.
type painter struct{ graphviz *graphviz.Graphviz }

func newPainter(ctx context.Context) (*painter, error) {
	g, err := graphviz.New(ctx)
	return &painter{g}, err
}

func (p *painter) close() { _ = p.graphviz.Close() }

// decoration matches comments and the names of nodes, which browsers would show as tooltips.
var decoration = regexp.MustCompile(`<!--.*?-->\n|<title>.*?</title>\n`)

// paint returns a flowchart as an SVG element without blank lines, which would end it in Markdown.
func (p *painter) paint(ctx context.Context, flowchart string) (string, error) {
	chart, err := parseChart(flowchart)
	if err != nil {
		return "", err
	}
	graph, err := graphviz.ParseBytes([]byte(chart.dot()))
	if err != nil {
		return "", err
	}
	defer func() { _ = graph.Close() }()
	var svg bytes.Buffer
	if err := p.graphviz.Render(ctx, graph, graphviz.SVG, &svg); err != nil {
		return "", err
	}
	_, element, found := strings.Cut(svg.String(), "<svg")
	if !found {
		return "", fmt.Errorf("no picture from Graphviz for %q", flowchart)
	}
	element = decoration.ReplaceAllString(strings.TrimSpace(element), "")
	return strings.ReplaceAll("<svg "+element, "\n\n", "\n"), nil
}

// chart is a Mermaid flowchart: the part of the language that the pages use.
type chart struct {
	direction string
	nodes     map[string]*node
	order     []string // names of nodes
	groups    []*group
	edges     []edge
}

type node struct {
	label, shape string
	group        *group
}

type group struct {
	name, label string
	parent      *group
}

type edge struct{ from, to, label, style string }

var (
	chartStart = regexp.MustCompile(`^flowchart (TB|LR)$`)
	groupStart = regexp.MustCompile(`^subgraph (\w+)(?: \[(.+)\])?$`)
	nodeToken  = regexp.MustCompile(`^(\w+)(?:\(\[(.+?)\]\)|\(\((.+?)\)\)|\[\((.+?)\)\]|\[(.+?)\]|\{(.+?)\})?`)
	edgeToken  = regexp.MustCompile(`^ *(?:(-\.->)|(<?)-\. ?"?([^".]+?)"? ?\.->|-- (.+?) -->|(-->)|(---)|(~~~))(?:\|([^|]+)\|)? *`)
	// shapes are those of Graphviz for the groups of nodeToken with labels.
	shapes = []string{"oval", "circle", "cylinder", "box", "diamond"}
)

// parseChart parses a flowchart. It returns an error for anything that it does not know.
func parseChart(text string) (*chart, error) {
	c := &chart{nodes: map[string]*node{}}
	var inside *group
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		start, sub := chartStart.FindStringSubmatch(line), groupStart.FindStringSubmatch(line)
		switch {
		case line == "":
		case start != nil:
			c.direction = start[1]
		case sub != nil:
			inside = &group{sub[1], sub[2], inside}
			c.groups = append(c.groups, inside)
		case line == "end" && inside != nil:
			inside = inside.parent
		default:
			if err := c.parseEdges(line, inside); err != nil {
				return nil, err
			}
		}
	}
	if c.direction == "" || inside != nil {
		return nil, fmt.Errorf("the diagram does not begin with flowchart TB or LR, or a subgraph has no end: %q", text)
	}
	return c, nil
}

// parseEdges parses nodes that are connected by edges, such as "a --> b & c".
func (c *chart) parseEdges(line string, inside *group) error {
	rest := line
	from, rest, err := c.parseNodes(rest, inside)
	for err == nil && rest != "" {
		token := edgeToken.FindStringSubmatch(rest)
		if token == nil {
			return fmt.Errorf("unknown edge in %q at %q", line, rest)
		}
		e := edge{label: token[3] + token[4] + token[8]}
		switch {
		case token[7] != "":
			e.style = "invis"
		case token[6] != "":
			e.style = "none"
		case token[2] != "":
			e.style = "both"
		case token[1]+token[3] != "":
			e.style = "dashed"
		}
		var to []string
		if to, rest, err = c.parseNodes(rest[len(token[0]):], inside); err != nil {
			return err
		}
		for _, e.from = range from {
			for _, e.to = range to {
				c.edges = append(c.edges, e)
			}
		}
		from = to
	}
	return err
}

// parseNodes parses one or more nodes, separated by "&", and returns their names and what follows.
func (c *chart) parseNodes(text string, inside *group) (names []string, rest string, err error) {
	for {
		token := nodeToken.FindStringSubmatch(text)
		if token == nil {
			return nil, text, fmt.Errorf("unknown node at %q", text)
		}
		names = append(names, token[1])
		c.declare(token, inside)
		text = text[len(token[0]):]
		next, found := strings.CutPrefix(strings.TrimLeft(text, " "), "& ")
		if !found {
			return names, strings.TrimRight(text, " "), nil
		}
		text = next
	}
}

// declare stores the label and shape of a node, and the group in which it is first named.
func (c *chart) declare(token []string, inside *group) {
	name := token[1]
	n := c.nodes[name]
	if n == nil {
		n = &node{label: name, shape: "box"}
		c.nodes[name] = n
		c.order = append(c.order, name)
	}
	for i, label := range token[2:] {
		if label != "" {
			n.label, n.shape = label, shapes[i]
		}
	}
	if n.group == nil {
		n.group = inside
	}
}

// dot returns the chart in the language of Graphviz. The stylesheet of the site sets the colors.
func (c *chart) dot() string {
	var text strings.Builder
	fmt.Fprintf(&text, "digraph {\nrankdir=%s; compound=true; bgcolor=transparent; pad=0.3; nodesep=0.4; ranksep=0.45\n", c.direction)
	text.WriteString("node [style=rounded, fontname=Verdana, fontsize=11, margin=\"0.15,0.08\", height=0.4]\n")
	text.WriteString("edge [fontname=Verdana, fontsize=10, arrowsize=0.7]\n")
	c.writeGroup(&text, nil)
	for _, e := range c.edges {
		attributes := []string{"label=" + quote(e.label)}
		switch e.style {
		case "":
		case "none", "both":
			attributes = append(attributes, "dir="+e.style)
		default:
			attributes = append(attributes, "style="+e.style)
		}
		from, fromGroup := c.end(e.from)
		to, toGroup := c.end(e.to)
		if fromGroup {
			attributes = append(attributes, "ltail="+quote("cluster_"+e.from))
		}
		if toGroup {
			attributes = append(attributes, "lhead="+quote("cluster_"+e.to))
		}
		fmt.Fprintf(&text, "%s -> %s [%s]\n", quote(from), quote(to), strings.Join(attributes, ", "))
	}
	text.WriteString("}\n")
	return text.String()
}

// writeGroup writes the nodes and groups that are directly in a group, or in none.
func (c *chart) writeGroup(text *strings.Builder, in *group) {
	for _, name := range c.order {
		if n := c.nodes[name]; n.group == in && !c.isGroup(name) {
			fmt.Fprintf(text, "%s [label=%s, shape=%s]\n", quote(name), quote(wrap(n.label)), n.shape)
		}
	}
	for _, g := range c.groups {
		if g.parent == in {
			fmt.Fprintf(text, "subgraph %s {\nlabel=%s; style=\"rounded,dashed\"; fontname=Verdana; fontsize=11\n", quote("cluster_"+g.name), quote(g.label))
			c.writeGroup(text, g)
			text.WriteString("}\n")
		}
	}
}

func (c *chart) isGroup(name string) bool {
	return slices.ContainsFunc(c.groups, func(g *group) bool { return g.name == name })
}

// end returns the node at the end of an edge, and whether the edge leads to a group instead, of which it is any node.
func (c *chart) end(name string) (of string, isGroup bool) {
	if !c.isGroup(name) {
		return name, false
	}
	for _, candidate := range c.order {
		for g := c.nodes[candidate].group; g != nil && !c.isGroup(candidate); g = g.parent {
			if g.name == name {
				return candidate, true
			}
		}
	}
	return name, false
}

// labelWidth is the number of characters after which a label continues on another line.
const labelWidth = 22

// wrap breaks a label into lines.
func wrap(label string) string {
	lines := []string{""}
	for part := range strings.FieldsSeq(strings.ReplaceAll(label, "<br/>", " ")) {
		last := &lines[len(lines)-1]
		switch {
		case *last == "":
			*last = part
		case len(*last)+len(part) < labelWidth:
			*last += " " + part
		default:
			lines = append(lines, part)
		}
	}
	return strings.Join(lines, "\n")
}

// quote returns a string of Graphviz, in which a line break is written as \n.
func quote(text string) string {
	return `"` + strings.NewReplacer(`"`, `\"`, "\n", `\n`).Replace(text) + `"`
}
