package monitoring

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// dashboard contains the parts of a dashboard that the tests read.
type dashboard struct {
	Title, UID string
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
	Panels []panel
}

type panel struct {
	ID          int
	Type, Title string
	GridPos     struct{ X, Y, W, H int }
	Targets     []struct{ Expr, LegendFormat string }
}

var (
	variable = regexp.MustCompile(`\$\{?(\w+)\}?`)
	legend   = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)
	values   = regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`)
)

// TestDashboard_ExpressionsAreValid checks that each expression can be parsed, and refers to existing metrics, labels and variables.
func TestDashboard_ExpressionsAreValid(t *testing.T) {
	var board dashboard
	text := read(t, "config", "monitoring", "dashboard.json")
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	if len(board.Panels) == 0 || board.Title == "" || board.UID == "" {
		t.Fatal("there is no dashboard")
	}
	known := list(t)
	board.checkVariables(t, known, string(text))
	board.checkPlaces(t)
	for _, p := range board.Panels {
		p.check(t, known)
	}
}

// checkVariables checks that all variables are declared, and that their values come from existing labels.
func (d dashboard) checkVariables(t *testing.T, known map[string][]string, text string) {
	declared := []string{"__all"}
	for _, v := range d.Templating.List {
		declared = append(declared, v.Name)
		if parts := values.FindStringSubmatch(v.Definition); v.Type == "query" && (parts == nil || !slices.Contains(known[parts[1]], parts[2])) {
			t.Errorf("variable %s: %s", v.Name, v.Definition)
		}
	}
	for _, name := range variable.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(declared, name[1]) {
			t.Errorf("there is no variable %s", name[0])
		}
	}
}

// checkPlaces checks that panels have unique IDs, do not overlap, and are within the page.
func (d dashboard) checkPlaces(t *testing.T) {
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("%s: its ID %d is taken", p.Title, p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%s overlaps with %q or is outside the page", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
	}
}

func (p panel) check(t *testing.T, known map[string][]string) {
	if len(p.Targets) == 0 && p.Type != "row" {
		t.Errorf("%s shows nothing", p.Title)
	}
	for _, target := range p.Targets {
		selected, err := parse(known, strings.ReplaceAll(target.Expr, "$namespace", "a|b"))
		if err != nil {
			t.Errorf("%s: %s: %v", p.Title, target.Expr, err)
		}
		for _, name := range legend.FindAllStringSubmatch(target.LegendFormat, -1) {
			if !slices.Contains(selected, name[1]) {
				t.Errorf("%s: no series of %s has the label %s of the legend", p.Title, target.Expr, name[1])
			}
		}
	}
}
