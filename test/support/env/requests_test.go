package env

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRequests_Kinds(t *testing.T) {
	for want, requests := range map[Kind][]RequestKey{
		Work:  {{Method: "LIST", Resource: "nodes"}, {Method: "GET", Group: "events.example", Resource: "events"}},
		Lease: {{Method: "PUT", Group: "coordination.k8s.io", Resource: "leases"}},
		Event: {{Method: "POST", Resource: "events"}, {Method: "PATCH", Group: "events.k8s.io", Resource: "events"}},
	} {
		for _, request := range requests {
			if got := request.Kind(); got != want {
				t.Errorf("%+v: want %s, got %s", request, want, got)
			}
		}
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
`

func TestRequests_ParseTotals(t *testing.T) {
	got, err := parseTotals([]byte(metricsText))
	if err != nil {
		t.Fatal(err)
	}
	want := Totals{
		{Method: "GET", Resource: "pods", Code: 200}: 3, {Method: "GET", Resource: "pods", Code: 404}: 2,
		{Method: "POST", Resource: "pods/eviction", Code: 201}:              1,
		{Method: "LIST", Group: "apps", Resource: "deployments", Code: 200}: 4,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

func TestRequests_Since(t *testing.T) {
	pods, events := RequestKey{Resource: "pods"}, RequestKey{Resource: "events"}
	got := Totals{pods: 12, events: 3}.Since(Totals{pods: 12, events: 1})
	if diff := cmp.Diff(Totals{events: 2}, got); diff != "" {
		t.Errorf("difference (-want +got):\n%s", diff)
	}
	if work, both := got.Count(Work), got.Count(Work, Event); work != 0 || both != 2 {
		t.Errorf("counts %d and %d, want 0 and 2", work, both)
	}
}
