package metrics

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/golden"
)

// groups are prefixes of metrics that libraries define, and that change with their versions. The page describes
// them as groups.
var groups = []string{"go_", "process_", "controller_runtime_", "certwatcher_"}

func grouped(name string) bool {
	return slices.ContainsFunc(groups, func(group string) bool { return strings.HasPrefix(name, group) })
}

// listed returns all metrics that are listed individually.
func listed(t *testing.T) []*dto.MetricFamily {
	t.Helper()
	return slices.DeleteFunc(everything(t), func(family *dto.MetricFamily) bool { return grouped(family.GetName()) })
}

// TestMetrics_MatchList checks all metrics against the list: dashboards, alerts and users rely on names, types, labels and
// help texts.
func TestMetrics_MatchList(t *testing.T) {
	families := listed(t)
	var list strings.Builder
	for _, family := range families {
		list.WriteString(rowOf(family).String())
	}
	golden.Compare(t, "testdata/metrics.golden", list.String())

	var problems []string
	found, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range found {
		problems = append(problems, problem.Metric+": "+problem.Text)
	}
	slices.Sort(problems)
	var allowed []string
	for _, exception := range exceptions {
		allowed = append(allowed, exception.problem)
	}
	if diff := cmp.Diff(allowed, problems); diff != "" {
		t.Errorf("what promlint finds, -listed +found:\n%s", diff)
	}
}

const (
	camelCase = ": label names should be written in 'snake_case' not 'camelCase'"
	total     = `: non-counter metrics should not have "_total" suffix`
	byMCM     = "the name is MCM's"
)

// exceptions are findings of promlint that are accepted, with the reason.
var exceptions = []struct{ problem, reason string }{
	{"mcm_machine_deployment_info" + camelCase, "the label createdAt is MCM's"},
	{"mcm_machine_deployment_items_total" + total, byMCM},
	{`mcm_machine_deployment_status_collision_count: non-histogram and non-summary metrics should not have "_count" suffix`, byMCM},
	{"mcm_machine_info" + camelCase, "the label createdAt is MCM's"},
	{"mcm_machine_items_total" + total, byMCM},
	{"mcm_machine_num_failed_join: counter metrics should have \"_total\" suffix", byMCM},
	{"mcm_machine_set_info" + camelCase, "the label createdAt is MCM's"},
	{"mcm_machine_set_items_total" + total, byMCM},
}

// TestMetrics_IncludeMCMMetrics checks that the list contains MCM's metrics with the same names, types and labels. The
// expected values come from MCM's source code.
func TestMetrics_IncludeMCMMetrics(t *testing.T) {
	there := map[string]row{}
	for _, family := range listed(t) {
		there[family.GetName()] = rowOf(family)
	}
	for _, want := range table(t, "testdata/mcm.tsv") {
		got, ok := there[want[0]]
		if !ok {
			t.Errorf("there is no %s", want[0])
			continue
		}
		labels := strings.Fields(want[2])
		slices.Sort(labels)
		if got.kind != want[1] || got.labels != strings.Join(labels, " ") {
			t.Errorf("%s is a %s with the labels %q, want a %s with %q", want[0], got.kind, got.labels, want[1], labels)
		}
	}
}

// table parses rows of tab-separated values.
func table(t *testing.T, file string) (rows [][]string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSuffix(line, "\n"); line != "" && !strings.HasPrefix(line, "#") {
			rows = append(rows, strings.Split(line, "\t"))
		}
	}
	return rows
}

// TestMetrics_PageMatchesList checks that the page about metrics matches the list.
func TestMetrics_PageMatchesList(t *testing.T) {
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "reference", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	ofMCM := map[string]bool{}
	for _, row := range table(t, "testdata/mcm.tsv") {
		ofMCM[row[0]] = true
	}
	var got []string
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 7 || !strings.HasPrefix(cells[1], " `") {
			continue
		}
		meaning := strings.TrimSpace(cells[4])
		if meaning == "" {
			t.Errorf("no meaning: %s", line)
		}
		got = append(got, strings.Join([]string{unquote(cells[1]), strings.TrimSpace(cells[2]), unquote(cells[3]), strings.TrimSpace(cells[5])}, " | "))
	}
	slices.Sort(got)
	var want []string
	for _, row := range table(t, "testdata/metrics.golden") {
		origin := "library"
		switch {
		case ofMCM[row[0]]:
			origin = "MCM"
		case strings.HasPrefix(row[0], "millwright_"):
			origin = "Millwright"
		}
		want = append(want, strings.Join([]string{row[0], row[1], row[2], origin}, " | "))
	}
	for _, group := range groups {
		want = append(want, group+"* | various |  | library")
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rows of the page (-want +got):\n%s", diff)
	}
}

// unquote removes the markup of names in a cell.
func unquote(cell string) string {
	names := strings.Fields(strings.NewReplacer("`", "", ",", "").Replace(cell))
	slices.Sort(names)
	return strings.Join(names, " ")
}
