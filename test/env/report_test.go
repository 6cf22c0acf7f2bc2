package env

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var noon = time.Date(2030, 6, 1, 12, 0, 0, 0, time.UTC)

func TestFilter(t *testing.T) {
	request := Request{
		Time: noon, Verb: "create", Group: "", Resource: "pods/eviction", Namespace: "ns", Name: "pod",
		User: "jane", UserAgent: "manager/v1 (linux/amd64) drain",
	}
	tests := map[string]struct {
		reason string
		filter Filter
		want   bool
	}{
		"Zero":           {"an empty filter fits everything", Filter{}, true},
		"Kind":           {"", Filter{Kind: Work}, true},
		"OtherKind":      {"", Filter{Kind: Event}, false},
		"Verb":           {"", Filter{Verb: "create", User: "jane", Name: "pod"}, true},
		"OtherVerb":      {"", Filter{Verb: "get"}, false},
		"Resource":       {"", Filter{Resource: "pods/eviction"}, true},
		"NoSubresource":  {"a subresource is a resource of its own", Filter{Resource: "pods"}, false},
		"OtherGroup":     {"", Filter{Resource: "pods/eviction", Group: "policy"}, false},
		"Namespace":      {"", Filter{Namespace: "ns"}, true},
		"OtherNamespace": {"", Filter{Namespace: "n"}, false},
		"AgentBegins":    {"agents carry versions and platforms", Filter{UserAgent: "manager/"}, true},
		"OtherAgent":     {"", Filter{UserAgent: "drain"}, false},
		"From":           {"the beginning belongs to the window", Filter{After: noon, Before: noon.Add(1)}, true},
		"Until":          {"the end does not", Filter{Before: noon}, false},
		"TooEarly":       {"", Filter{After: noon.Add(1)}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := test.filter.fits(request); got != test.want {
				t.Errorf("want %v, got %v: %s", test.want, got, test.reason)
			}
		})
	}
}

func TestKinds(t *testing.T) {
	for want, requests := range map[Kind][]Request{
		Work:      {{Verb: "list", Resource: "nodes"}, {Verb: "get", Group: "events.example", Resource: "events"}},
		Watch:     {{Verb: "watch", Resource: "events"}},
		Lease:     {{Verb: "update", Group: "coordination.k8s.io", Resource: "leases"}},
		Event:     {{Verb: "create", Resource: "events"}, {Verb: "patch", Group: "events.k8s.io", Resource: "events"}},
		Discovery: {{Verb: "get", URI: "/apis"}},
		Internal:  {{Verb: "get", Resource: "nodes", User: "system:apiserver"}},
	} {
		for _, request := range requests {
			if got := request.Kind(); got != want {
				t.Errorf("%+v: want %s, got %s", request, want, got)
			}
		}
	}
}

func TestStagesOfOneRequestCountOnce(t *testing.T) {
	tests := map[string]struct {
		verb   string
		code   int
		stages []string
	}{
		"Plain":         {"get", 200, []string{"RequestReceived", "ResponseComplete"}},
		"LongAnswer":    {"get", 200, []string{"ResponseStarted", "ResponseComplete"}},
		"Watch":         {"watch", 200, []string{"ResponseStarted", "ResponseComplete"}},
		"OpenWatch":     {"watch", 200, []string{"ResponseStarted"}},
		"RefusedWatch":  {"watch", 403, []string{"ResponseComplete"}},
		"PanicOfServer": {"get", 500, []string{"Panic"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			count := 0
			for _, stage := range test.stages {
				event := auditEvent{Stage: stage, Verb: test.verb}
				event.ResponseStatus.Code = test.code
				if _, counts := event.request(); counts {
					count++
				}
			}
			if count != 1 {
				t.Errorf("counted %d times", count)
			}
		})
	}
}

const metricsText = `# HELP apiserver_request_total [STABLE] Counter of apiserver requests.
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 3
apiserver_request_total{code="404",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 2
apiserver_request_total{code="201",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="eviction",verb="POST",version="v1"} 1
apiserver_request_total{code="200",component="apiserver",dry_run="",group="apps",resource="deployments",scope="cluster",subresource="",verb="LIST",version="v1"} 4
apiserver_request_total{code="0",component="apiserver",dry_run="",group="",resource="pods",scope="cluster",subresource="",verb="WATCH",version="v1"} 9
apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="",scope="",subresource="/readyz",verb="GET",version=""} 7
apiserver_request_total_of_others{code="200"} 1
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.5e+09
`

func TestParseTotals(t *testing.T) {
	got, err := parseTotals([]byte(metricsText))
	if err != nil {
		t.Fatal(err)
	}
	want := map[Answered]int{
		{Method: "GET", Resource: "pods", Code: 200}: 3, {Method: "GET", Resource: "pods", Code: 404}: 2,
		{Method: "POST", Resource: "pods/eviction", Code: 201}:              1,
		{Method: "LIST", Group: "apps", Resource: "deployments", Code: 200}: 4,
	}
	if diff := cmp.Diff(want, got.Counts); diff != "" || got.Started != 1.5e9 {
		t.Errorf("started %g, counts (-want +got):\n%s", got.Started, diff)
	}
	perResource := map[string]int{"pods": 5, "pods/eviction": 1, "deployments.apps": 4}
	if diff := cmp.Diff(perResource, got.perResource()); diff != "" {
		t.Errorf("per resource (-want +got):\n%s", diff)
	}
}

func TestCompare(t *testing.T) {
	pods, deployments := Answered{Resource: "pods"}, Answered{Group: "apps", Resource: "deployments"}
	before := Totals{Started: 1, Counts: map[Answered]int{pods: 10}}
	report := &Report{Requests: []Request{
		{Verb: "get", Resource: "pods"},
		{Verb: "watch", Resource: "pods"},
		{Verb: "get", Resource: "nodes", Refused: true},
		{Verb: "get", Group: "apps", Resource: "deployments"},
		{Verb: "get", URI: "/version"},
	}}
	report.compare(before, Totals{Started: 1, Counts: map[Answered]int{pods: 12, deployments: 1}})
	if diff := cmp.Diff(map[string]int{"pods": 1}, report.Unaccounted); diff != "" {
		t.Errorf("differences (-want +got):\n%s", diff)
	}
	report.Unaccounted = nil
	report.compare(before, Totals{Started: 2})
	if !report.Restarted || report.Unaccounted != nil {
		t.Errorf("want a restart to be seen, got %+v", report)
	}
}

func TestTable(t *testing.T) {
	report := Join(
		&Report{Requests: []Request{
			{Time: noon.Add(2), Verb: "watch", Resource: "pods", UserAgent: "manager/v1 x"},
			{Time: noon.Add(1), Verb: "patch", Group: "apps", Resource: "deployments/status", UserAgent: "manager/v1 x"},
		}},
		&Report{Requests: []Request{
			{Time: noon, Verb: "create", Resource: "pods", UserAgent: "manager/v1 y"},
			{Time: noon, Verb: "create", Resource: "pods", UserAgent: "manager/v1 z"},
			{Time: noon, Verb: "get", URI: "/version?x=y", UserAgent: "kubectl/v1"},
		}},
	)
	want := `KIND       COUNT  VERB    RESOURCE                 USER AGENT
work       2      create  pods                     manager/v1
work       1      patch   deployments/status.apps  manager/v1
watch      1      watch   pods                     manager/v1
discovery  1      get     /version                 kubectl/v1
work       3      in total
event      0      in total
lease      0      in total
watch      1      in total
discovery  1      in total
internal   0      in total
`
	if diff := cmp.Diff(want, report.Table()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	if got := report.Requests[len(report.Requests)-1].Verb; got != "watch" {
		t.Errorf("want the requests in order of time, the last is %s", got)
	}
}
