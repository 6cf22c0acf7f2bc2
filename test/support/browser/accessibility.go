package browser

import (
	"os"
	"strings"
)

// Violations returns the rules of accessibility that the page violates, each with the elements and what is wrong with
// them. axe is the path of axe.min.js in ui/vendor/axe-core. Texts over pictures are not checked, because axe-core cannot
// determine their contrast.
func (p *Page) Violations(axe string) []string {
	p.t.Helper()
	if !Evaluate[bool](p, `"axe" in window`) {
		script, err := os.ReadFile(axe)
		if err != nil {
			p.t.Fatal(err)
		}
		Evaluate[any](p, string(script)+"\n; undefined")
	}
	return Evaluate[[]string](p, `axe.run(document, { resultTypes: ["violations"] }).then((result) => result.violations.map((rule) =>
		rule.id + ": " + rule.help + rule.nodes.map((node) => "\n  " + node.html.slice(0, 200) + "\n    " + node.failureSummary.replaceAll("\n", "\n    ")).join("")))`)
}

// WantAccessible checks that the page violates no rule of accessibility and is not wider than the window, in light and dark
// colors, at a wide and a narrow size. name is that of the page in error messages, and axe is the path of axe.min.js; see Violations.
func (p *Page) WantAccessible(axe, name string) {
	p.t.Helper()
	for _, view := range []struct {
		name  string
		width int
		dark  bool
	}{{"light", 1440, false}, {"dark", 1440, true}, {"light and narrow", 390, false}, {"dark and narrow", 390, true}} {
		p.Resize(view.width, 900, view.dark)
		if violations := p.Violations(axe); len(violations) > 0 {
			p.t.Errorf("%s, %s:\n%s", name, view.name, strings.Join(violations, "\n"))
		}
		if wide := Evaluate[int](p, `document.documentElement.scrollWidth`); wide > view.width {
			p.t.Errorf("%s, %s: the page is %d pixels wide", name, view.name, wide)
		}
	}
}
