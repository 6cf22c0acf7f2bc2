package mcmsuite

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millwright-dev/millwright/test/support/env"
)

// unseen are metrics of events that need not occur in the suite.
var unseen = []string{
	"mcm_cloud_api_requests_failed_total", "mcm_cloud_api_driver_requests_failed_total",
	"mcm_machine_initialize_duration_seconds", "mcm_machine_num_failed_join",
	"mcm_machine_set_failed_machines", "mcm_machine_set_status_condition",
	"mcm_machine_deployment_failed_machines", "mcm_machine_deployment_info_spec_revision_history_limit",
	"mcm_machine_deployment_info_spec_progress_deadline_seconds", "mcm_machine_deployment_info_spec_rollback_to_revision",
	"mcm_machine_deployment_status_collision_count",
}

// exported contains MCM's metrics by the process that exports them.
func (s *suite) exported() map[string][]string {
	root, err := env.Root()
	s.must(err)
	text, err := os.ReadFile(filepath.Join(root, "test", "suites", "metrics", "testdata", "mcm.tsv"))
	s.must(err)
	by := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(cells) != 4 {
			continue
		}
		for process := range s.processes {
			if cells[3] == process || cells[3] == "both" {
				by[process] = append(by[process], cells[0])
			}
		}
	}
	return by
}

// served returns the names of MCM's metrics that a process serves.
func (s *suite) served(process string) (names []string) {
	for line := range strings.Lines(s.page(process, "metrics")) {
		name, ok := strings.CutPrefix(line, "# TYPE ")
		name, _, _ = strings.Cut(name, " ")
		if ok && (strings.HasPrefix(name, "mcm_") || strings.HasPrefix(name, "rest_client_")) {
			names = append(names, name)
		}
	}
	return names
}

// hasMetrics checks that each process serves MCM's metrics, and none of the other process.
func (s *suite) hasMetrics() {
	for process, want := range s.exported() {
		got := s.served(process)
		for _, name := range want {
			if !slices.Contains(got, name) && !slices.Contains(unseen, name) {
				s.t.Errorf("%s lacks %s", process, name)
			}
		}
		for _, name := range got {
			if !slices.Contains(want, name) {
				s.t.Errorf("%s has %s, which is the other process's, or no metric of MCM's", process, name)
			}
		}
		if text := s.page(process, "metrics"); !strings.Contains(text, `rest_client_request_latency_seconds_bucket{url="`+s.Admin.Host) {
			s.t.Errorf("%s has no rest_client_request_latency_seconds", process)
		}
	}
}
