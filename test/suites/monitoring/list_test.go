package monitoring

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
)

// root is the root directory of the repository.
var root = filepath.Join("..", "..", "..")

func read(t *testing.T, path ...string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// fromScrape are labels that Prometheus adds to every series.
var fromScrape = []string{model.MetricNameLabel, "job", "instance"}

// list contains the labels of each series that the program exports.
func list(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for line := range strings.Lines(string(read(t, "test", "suites", "metrics", "testdata", "metrics.golden"))) {
		cells := strings.Split(line, "\t")
		name, kind, names := cells[0], cells[1], strings.Fields(cells[2])
		all[name] = names
		if kind == "histogram" {
			all[name+"_sum"], all[name+"_count"], all[name+"_bucket"] = names, names, append(slices.Clone(names), "le")
		}
	}
	return all
}

// parse parses an expression, and returns the labels of the series that it selects. It returns an error for names
// and labels that the program does not export.
func parse(known map[string][]string, text string) (selected []string, err error) {
	expression, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	if err != nil {
		return nil, err
	}
	check := func(allowed []string, names ...string) error {
		for _, name := range names {
			if !slices.Contains(allowed, name) && !slices.Contains(fromScrape, name) {
				return fmt.Errorf("no series of it has the label %s", name)
			}
		}
		return nil
	}
	err = inspect(expression, func(node parser.Node) error {
		switch node := node.(type) {
		case *parser.VectorSelector:
			has, ok := known[node.Name]
			if !ok {
				return fmt.Errorf("there is no metric %q", node.Name)
			}
			selected = append(selected, has...)
			for _, matcher := range node.LabelMatchers {
				if err := check(has, matcher.Name); err != nil {
					return fmt.Errorf("%s: %w", node.Name, err)
				}
			}
		case *parser.AggregateExpr:
			return check(labelsOf(known, node.Expr), node.Grouping...)
		case *parser.BinaryExpr:
			if matching := node.VectorMatching; matching != nil {
				for _, side := range []parser.Expr{node.LHS, node.RHS} {
					if err := check(labelsOf(known, side), matching.MatchingLabels...); err != nil {
						return err
					}
				}
				return check(append(labelsOf(known, node.LHS), labelsOf(known, node.RHS)...), matching.Include...)
			}
		}
		return nil
	})
	return selected, err
}

// inspect visits all nodes until one returns an error.
func inspect(expression parser.Expr, visit func(parser.Node) error) (err error) {
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		if node != nil && err == nil {
			err = visit(node)
		}
		return err
	})
	return err
}

// labelsOf returns the labels of all series that an expression selects.
func labelsOf(known map[string][]string, expression parser.Expr) (all []string) {
	_ = inspect(expression, func(node parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			all = append(all, known[selector.Name]...)
		}
		return nil
	})
	return all
}

// TestParse checks that the checks of this package find mistakes.
func TestParse(t *testing.T) {
	known := list(t)
	for text, wrong := range map[string]bool{
		`mcm_machine_items_total`:                                                          false,
		`mcm_machine_item_total`:                                                           true,
		`sum by (namespace (mcm_machine_info)`:                                             true,
		`mcm_machine_info{node_name="a", job="b"}`:                                         false,
		`mcm_machine_info{node="a"}`:                                                       true,
		`sum by (node_name) (mcm_machine_info)`:                                            false,
		`sum by (node) (mcm_machine_info)`:                                                 true,
		`sum by (le) (rate(mcm_workqueue_work_duration_seconds_bucket[5m]))`:               false,
		`sum by (le) (rate(mcm_workqueue_work_duration_seconds_sum[5m]))`:                  true,
		`mcm_machine_info * on (name) mcm_machine_current_status_phase`:                    false,
		`mcm_machine_info * on (node_name) mcm_machine_current_status_phase`:               true,
		`mcm_machine_info * on (name) group_right (zone) mcm_machine_current_status_phase`: true,
	} {
		if _, err := parse(known, text); (err != nil) != wrong {
			t.Errorf("%s: %v", text, err)
		}
	}
}
