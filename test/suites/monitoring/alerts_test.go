package monitoring

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"go.yaml.in/yaml/v3"
)

// prometheusRule is an object of the Prometheus operator.
type prometheusRule struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Metadata   struct {
		Name   string            `yaml:"name"`
		Labels map[string]string `yaml:"labels"`
	} `yaml:"metadata"`
	Spec struct {
		Groups []rulefmt.RuleGroup `yaml:"groups"`
	} `yaml:"spec"`
}

// alerts returns the alerting rules by name.
func alerts(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	decoder := yaml.NewDecoder(bytes.NewReader(read(t, "config", "monitoring", "alerts.yaml")))
	decoder.KnownFields(true)
	var object prometheusRule
	if err := decoder.Decode(&object); err != nil {
		t.Fatal(err)
	}
	if object.APIVersion != "monitoring.coreos.com/v1" || object.Kind != "PrometheusRule" || object.Metadata.Name == "" {
		t.Fatalf("it is a %s %s named %q", object.APIVersion, object.Kind, object.Metadata.Name)
	}
	// Prometheus' own validation of the rules.
	groups, err := yaml.Marshal(rulefmt.RuleGroups{Groups: object.Spec.Groups})
	if err != nil {
		t.Fatal(err)
	}
	if _, problems := rulefmt.Parse(groups, false, model.UTF8Validation, parser.NewParser(parser.Options{}), promslog.NewNopLogger()); len(problems) > 0 {
		t.Fatal(problems)
	}
	byName := map[string]rulefmt.Rule{}
	for _, group := range object.Spec.Groups {
		for _, rule := range group.Rules {
			if _, twice := byName[rule.Alert]; twice {
				t.Errorf("there are two alerts %s", rule.Alert)
			}
			byName[rule.Alert] = rule
		}
	}
	return byName
}

// TestAlerts_MetricsExist checks that the expressions refer to existing metrics and labels, and that the page lists
// the alerts.
func TestAlerts_MetricsExist(t *testing.T) {
	known, page := list(t), string(read(t, "docs", "reference", "metrics.md"))
	for name, rule := range alerts(t) {
		if _, err := parse(known, rule.Expr); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		row := fmt.Sprintf("| `%s` | %s | ", name, rule.Labels["severity"])
		if !strings.Contains(page, row) {
			t.Errorf("docs/reference/metrics.md has no row %q", row)
		}
	}
	if rows := strings.Count(page, "| warning |") + strings.Count(page, "| critical |"); rows != len(alerts(t)) {
		t.Errorf("docs/reference/metrics.md has %d alerts", rows)
	}
}

// runbooks is the beginning of the annotation runbook_url.
const runbooks = "https://github.com/millwright-dev/millwright/blob/main/docs/reference/alerts.md#"

// TestAlerts_HaveRunbooks checks that each alert leads to its own section of the page, and that each section is about
// an alert.
func TestAlerts_HaveRunbooks(t *testing.T) {
	sections := map[string]string{}
	for _, section := range strings.Split(string(read(t, "docs", "reference", "alerts.md")), "\n## ")[1:] {
		title, text, _ := strings.Cut(section, "\n")
		sections[title] = text
	}
	for name, rule := range alerts(t) {
		if text := sections[name]; len(strings.Fields(text)) < 20 {
			t.Errorf("docs/reference/alerts.md does not describe %s", name)
		}
		// GitHub's anchor of a heading of one word is the word in lower case.
		if got, want := rule.Annotations["runbook_url"], runbooks+strings.ToLower(name); got != want {
			t.Errorf("%s has the runbook %q, want %q", name, got, want)
		}
		delete(sections, name)
	}
	for title := range sections {
		t.Errorf("docs/reference/alerts.md has a section %s, and there is no such alert", title)
	}
}

// firing evaluates a rule every minute, and returns the summaries of the alerts that fire at the end.
func firing(t *testing.T, rule rulefmt.Rule, series string, end time.Duration) (summaries []string) {
	t.Helper()
	expression, err := parser.NewParser(parser.Options{}).ParseExpr(rule.Expr)
	if err != nil {
		t.Fatal(err)
	}
	storage := promqltest.LoadedStorage(t, "load 1m\n"+series)
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, 1e6)
	alerting := rules.NewAlertingRule(rule.Alert, expression, time.Duration(rule.For), time.Duration(rule.KeepFiringFor),
		labels.FromMap(rule.Labels), labels.FromMap(rule.Annotations), labels.EmptyLabels(), "", false, promslog.NewNopLogger())
	for at := time.Duration(0); at <= end; at += time.Minute {
		if _, err := alerting.Eval(t.Context(), 0, time.Unix(0, 0).Add(at), rules.EngineQueryFunc(engine, storage), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, alert := range alerting.ActiveAlerts() {
		if alert.State == rules.StateFiring {
			summaries = append(summaries, alert.Annotations.Get("summary"))
		}
	}
	return summaries
}

// TestAlerts_Fire evaluates series of four hours, minute by minute, and checks which alerts fire at the end.
func TestAlerts_Fire(t *testing.T) {
	// a+bxn means n more samples, each greater than the last one by b; _xn means no sample for n minutes.
	type story struct {
		fires, quiet string // series
		summary      string
	}
	const id = `namespace="shop", name="pool-1"`
	stories := map[string]story{
		"MillwrightAbsent": {
			`up 1x240`, `mcm_machine_controller_frozen 0x240`,
			"No manager exports Machines.",
		},
		"MillwrightWithoutLeader": {
			"leader_election_master_status{job=\"m\", name=\"l\", instance=\"a\"} 1x200 0x40\nleader_election_master_status{job=\"m\", name=\"l\", instance=\"b\"} 0x240",
			"leader_election_master_status{job=\"m\", name=\"l\", instance=\"a\"} 1x200 0x40\nleader_election_master_status{job=\"m\", name=\"l\", instance=\"b\"} 0x200 1x40",
			"No manager holds the lease l.",
		},
		"MillwrightFrozen": {
			`mcm_machine_controller_frozen{job="m"} 0x220 1x20`, `mcm_machine_controller_frozen{job="m"} 0x220 1x8 0x0 1x8`,
			"An API server does not respond to the manager.",
		},
		"MillwrightOrphanedVMs": {
			`millwright_orphan_vms{job="m"} 2x240`, `millwright_orphan_vms{job="m"} 0x200 2x40`,
			"2 VMs belong to no Machine, and are not deleted.",
		},
		"MachineCreationFails": {
			"mcm_machine_current_status_phase{" + id + "} 0x200 -2x40\nmcm_machine_info{" + id + ", spec_class_name=\"small\"} 1x240",
			"mcm_machine_current_status_phase{" + id + "} 0x200 -4x40\nmcm_machine_info{" + id + ", spec_class_name=\"small\"} 1x240",
			"1 Machines of the class shop/small cannot be created.",
		},
		"MachinesDoNotJoin": {
			`mcm_machine_num_failed_join{namespace="shop", machine_deployment="pool", zone="a"} 0x200 0+0.1x40`,
			`mcm_machine_num_failed_join{namespace="shop", machine_deployment="pool", zone="a"} 0+0.1x40 4x200`,
			"Machines of shop/pool do not become Nodes.",
		},
		"MachineDeletionHolds": {
			"mcm_machine_current_status_phase{" + id + "} 1x120 -4x120", "mcm_machine_current_status_phase{" + id + "} 1x200 -4x40",
			"The deletion of Machine shop/pool-1 is stuck.",
		},
		"MachineSetFrozen": {
			"mcm_machine_set_status_condition{" + id + ", condition=\"Frozen\"} 1x240", "mcm_machine_set_status_condition{" + id + ", condition=\"Frozen\"} 0x240",
			"The MachineSet shop/pool-1 is frozen.",
		},
		"RolloutStandsStill": {
			"mcm_machine_deployment_status_condition{" + id + ", condition=\"Progressing\"} 1x200 0x40",
			"mcm_machine_deployment_status_condition{" + id + ", condition=\"Progressing\"} 1x200 2x40\nmcm_machine_deployment_status_condition{" + id + ", condition=\"ReplicaFailure\"} 0x240",
			"The rollout of shop/pool-1 makes no progress.",
		},
		"MachinesUnavailable": {
			"mcm_machine_deployment_info_spec_replicas{" + id + "} 3x240\nmcm_machine_deployment_status_available_replicas{" + id + "} 2x240",
			"mcm_machine_deployment_info_spec_replicas{" + id + "} 3x240\nmcm_machine_deployment_status_available_replicas{" + id + "} 2x200 3x40",
			"The MachineDeployment shop/pool-1 lacks Machines.",
		},
		"ProviderIsExhausted": {
			`mcm_cloud_api_driver_requests_failed_total{provider="p", operation="create_machine", error_code="8"} 0+0.1x240`,
			`mcm_cloud_api_driver_requests_failed_total{provider="p", operation="get_machine_status", error_code="5"} 0+1x240`,
			"The provider p has no more capacity, or a quota is used up.",
		},
		"ProviderRequestsFail": {
			"mcm_cloud_api_requests_total{provider=\"p\", service=\"s\"} 0+10x240\nmcm_cloud_api_requests_failed_total{provider=\"p\", service=\"s\"} 0+6x240",
			"mcm_cloud_api_requests_total{provider=\"p\", service=\"s\"} 0+10x240\nmcm_cloud_api_requests_failed_total{provider=\"p\", service=\"s\"} 0+4x240",
			"More than half of the requests to the provider p fail.",
		},
		"VirtualMachineLeaseCapacityLow": {
			"millwright_virtual_machine_lease_renewals_per_second 81x240\nmillwright_virtual_machine_lease_renewals_per_second_capacity 100x240",
			"millwright_virtual_machine_lease_renewals_per_second 80x240\nmillwright_virtual_machine_lease_renewals_per_second_capacity 100x240",
			"The leases of virtual machines need 81 renewals per second, more than 80% of the capacity.",
		},
		"VirtualMachineStorageFails": {
			"millwright_virtual_machine_ready{" + id + ", reason=\"NoSpace\"} 0x240", "millwright_virtual_machine_ready{" + id + ", reason=\"DiskLocked\"} 0x240",
			"The storage of the VM shop/pool-1 stops its guest: NoSpace.",
		},
	}
	for name, rule := range alerts(t) {
		messages, ok := stories[name]
		if !ok {
			t.Errorf("%s has no story", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			if got := firing(t, rule, messages.fires, 4*time.Hour); len(got) != 1 || got[0] != messages.summary {
				t.Errorf("%q fire, want %q", got, messages.summary)
			}
			if got := firing(t, rule, messages.quiet, 4*time.Hour); len(got) > 0 {
				t.Errorf("%q fire, want none", got)
			}
		})
	}
}
