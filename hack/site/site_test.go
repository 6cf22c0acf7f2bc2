package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"
)

func TestIndex_GivesOrderAndGroups(t *testing.T) {
	got := readIndex("# Documentation\n\n## Get started\n\n* [On a laptop](get-started/local-mode.md): start\n\n## Tasks\n\nMachines:\n\n* [The `vm` driver](tasks/pool.md#top)\n* [Pools](tasks/pool.md): run [others](tasks/other.md)\n")
	want := map[string]page{
		"get-started/_index.md":     {Title: "Get started", Weight: 2},
		"get-started/local-mode.md": {LinkTitle: "On a laptop", Weight: 2},
		"tasks/_index.md":           {Title: "Tasks", Weight: 5},
		"tasks/pool.md":             {LinkTitle: "Pools", Weight: 5, Group: "Machines"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestChart_BecomesGraph(t *testing.T) {
	chart, err := parseChart(`flowchart LR
    users([users and operators everywhere]) -->|RBAC| control
    subgraph control [control cluster]
        objects[(Machines)] ~~~ manager
    end
    manager -.watch.-> objects & kubelet
    kubelet <-. "leases" .-> manager -- a label --> done{done?}
`)
	if err != nil {
		t.Fatal(err)
	}
	got := chart.dot()
	for _, want := range []string{
		"rankdir=LR;",
		`"users" [label="users and operators\neverywhere", shape=oval]`,
		`"users" -> "objects" [label="RBAC", lhead="cluster_control"]`,
		"subgraph \"cluster_control\" {\nlabel=\"control cluster\"; style=\"rounded,dashed\"; fontname=Verdana; fontsize=11\n\"objects\" [label=\"Machines\", shape=cylinder]\n\"manager\" [label=\"manager\", shape=box]\n}",
		`"objects" -> "manager" [label="", style=invis]`,
		`"manager" -> "objects" [label="watch", style=dashed]`,
		`"manager" -> "kubelet" [label="watch", style=dashed]`,
		`"kubelet" -> "manager" [label="leases", dir=both]`,
		`"manager" -> "done" [label="a label"]`,
		`"done" [label="done?", shape=diamond]`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the graph has no\n%s\nin\n%s", want, got)
		}
	}
}

func TestChart_UnknownSyntaxIsRejected(t *testing.T) {
	for name, text := range map[string]string{
		"another kind":           "sequenceDiagram\n    a->>b: hello\n",
		"no direction":           "a --> b\n",
		"an unknown edge":        "flowchart TB\n    a ==> b\n",
		"an edge without a node": "flowchart TB\n    a -->\n",
		"a subgraph without end": "flowchart TB\n    subgraph a [A]\n    b\n",
	} {
		if chart, err := parseChart(text); err == nil {
			t.Errorf("%s is accepted: %s", name, chart.dot())
		}
	}
}

// TestPages_DiagramsAreKnown parses the diagrams of all pages, and paints one of them.
func TestPages_DiagramsAreKnown(t *testing.T) {
	painter, err := newPainter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer painter.close()
	found := 0
	docs := filepath.Join("..", "..", "docs")
	err = fs.WalkDir(os.DirFS(docs), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".md" {
			return err
		}
		text, err := os.ReadFile(filepath.Join(docs, name))
		for _, block := range mermaid.FindAllStringSubmatch(string(text), -1) {
			if _, err := parseChart(block[1]); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if found++; found > 1 {
				continue
			}
			picture, err := painter.paint(t.Context(), block[1])
			if err != nil || !strings.HasPrefix(picture, "<svg width=") || !strings.HasSuffix(picture, "</svg>") || strings.Contains(picture, "\n\n") || strings.Contains(picture, "<title>") {
				t.Errorf("%s: %v, the picture is\n%s", name, err, picture)
			}
		}
		return err
	})
	if err != nil || found < 5 {
		t.Errorf("%d diagrams, %v", found, err)
	}
}

func TestLinks_BrokenOnesAreReported(t *testing.T) {
	site := fstest.MapFS{
		"index.html":        {Data: []byte(`<a href="tasks/pool.html#scale">ok</a><a href=https://example.com/x>ok</a><a href="#top" id=top>ok</a><img src="demo.svg">`)},
		"demo.svg":          {},
		"tasks/pool.html":   {Data: []byte(`<h2 id="scale"></h2><a href="../index.html#none">no heading</a><a href="missing.html">no page</a><a href="../tasks">a directory</a>`)},
		"tasks/broken.html": {Data: []byte(`<a href="pool.html#scale&amp;more">no heading</a><script src="https://example.com/x.js"></script><img src="pool.png">`)},
	}
	err := checkLinks(site, []string{"index.html", "tasks/pool.html", "tasks/broken.html"})
	if err == nil {
		t.Fatal("no broken link is reported")
	}
	want := []string{
		"tasks/pool.html links to ../index.html#none, which has no such heading",
		"tasks/pool.html links to missing.html, which does not exist",
		"tasks/pool.html links to ../tasks, which does not exist",
		"tasks/broken.html loads https://example.com/x.js from another site",
		"tasks/broken.html links to pool.png, which does not exist",
		"tasks/broken.html links to pool.html#scale&more, which has no such heading",
	}
	if got := err.Error(); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	if err := check(site); err == nil || !strings.Contains(err.Error(), "the site has 3 pages") {
		t.Errorf("a site with few pages: %v", err)
	}
}
