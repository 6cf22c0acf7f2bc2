package env

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/rest"
)

// Kind is the class in which a request for an API object is counted.
type Kind string

// The kinds of requests.
const (
	// Work is every other request. Request budgets limit these.
	Work Kind = "work"
	// Lease is a request for a Lease.
	Lease Kind = "lease"
	// Event is a request for an Event, of the core group or of events.k8s.io.
	Event Kind = "event"
)

// RequestKey identifies requests that an API server counts together.
type RequestKey struct {
	// Method is the API server's name of the operation: GET, LIST, POST, PUT, PATCH, APPLY, DELETE,
	// DELETECOLLECTION or CONNECT.
	Method string
	// Group is the API group, "" for the core group.
	Group string
	// Resource is the plural name, with the subresource if there is one.
	Resource string
	// Code is the HTTP status of the response.
	Code int
}

// Kind returns the class in which the requests are counted.
func (k RequestKey) Kind() Kind {
	switch resource, _, _ := strings.Cut(k.Resource, "/"); {
	case k.Group == "coordination.k8s.io" && resource == "leases":
		return Lease
	case resource == "events" && (k.Group == "" || k.Group == "events.k8s.io"):
		return Event
	default:
		return Work
	}
}

// Totals are the numbers of requests for API objects that an API server has handled since it started, including
// its own. They do not include requests that authorization rejected, nor watches, which are counted when they
// terminate.
type Totals map[RequestKey]int

// Count returns the number of requests of some kinds.
func (t Totals) Count(kinds ...Kind) int {
	sum := 0
	for key, count := range t {
		if slices.Contains(kinds, key.Kind()) {
			sum += count
		}
	}
	return sum
}

// Since returns the requests that were handled after an earlier count.
func (t Totals) Since(before Totals) Totals {
	difference := Totals{}
	for key, count := range t {
		if count -= before[key]; count != 0 {
			difference[key] = count
		}
	}
	return difference
}

const requestsMetric = "apiserver_request_total"

// Scrape returns the totals from the API server's metrics.
func Scrape(ctx context.Context, client rest.Interface) (Totals, error) {
	body, err := client.Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("asking for the API server's metrics: %w", err)
	}
	totals, err := parseTotals(body)
	if err != nil {
		return nil, fmt.Errorf("reading the API server's metrics: %w", err)
	}
	return totals, nil
}

func parseTotals(body []byte) (Totals, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(linesOf(body, requestsMetric)))
	if err != nil {
		return nil, err
	}
	totals := Totals{}
	for _, metric := range families[requestsMetric].GetMetric() {
		labels := map[string]string{}
		for _, label := range metric.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		if strings.HasPrefix(labels["verb"], "WATCH") || labels["resource"] == "" {
			continue
		}
		code, err := strconv.Atoi(labels["code"])
		if err != nil {
			return nil, fmt.Errorf("%s has the code %q", requestsMetric, labels["code"])
		}
		resource := labels["resource"]
		if labels["subresource"] != "" {
			resource += "/" + labels["subresource"]
		}
		totals[RequestKey{Method: labels["verb"], Group: labels["group"], Resource: resource, Code: code}] += int(metric.GetUntyped().GetValue())
	}
	return totals, nil
}

// linesOf returns the lines of one metric, without their type. Parsing all metrics would take many times as long.
func linesOf(body []byte, name string) []byte {
	var kept []byte
	for line := range bytes.Lines(body) {
		if bytes.HasPrefix(line, []byte(name+"{")) {
			kept = append(kept, line...)
		}
	}
	return kept
}
