package env

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/rest"
)

// Answered names requests that an API server counts together.
type Answered struct {
	// Method is how the API server calls what was done: GET, LIST, POST, PUT, PATCH,
	// APPLY, DELETE, DELETECOLLECTION or CONNECT. Watches are left out, since they are
	// counted when they end.
	Method string
	// Group is the API group, "" for the core group.
	Group string
	// Resource is the plural name, with the subresource if there is one.
	Resource string
	// Code is the HTTP status of the answer.
	Code int
}

// Kind returns the class in which the requests are counted: Work, Lease or Event.
func (a Answered) Kind() Kind { return kindOf(a.Group, a.Resource) }

// Totals is what an API server says that it has answered since it started: requests on
// API objects, its own included. What authorisation refused is not in it.
type Totals struct {
	// Started tells one life of the API server from the next.
	Started float64
	// Counts are the numbers of requests.
	Counts map[Answered]int
}

// perResource adds up what was asked of each resource, by totalsKey.
func (t Totals) perResource() map[string]int {
	sums := map[string]int{}
	for answered, count := range t.Counts {
		sums[totalsKey(answered.Group, answered.Resource)] += count
	}
	return sums
}

const (
	requestsMetric = "apiserver_request_total"
	startMetric    = "process_start_time_seconds"
)

// Scrape asks for the API server's own count.
func Scrape(ctx context.Context, client rest.Interface) (Totals, error) {
	body, err := client.Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return Totals{}, fmt.Errorf("asking for the API server's metrics: %w", err)
	}
	return parseTotals(body)
}

func parseTotals(body []byte) (Totals, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(only(body, requestsMetric, startMetric)))
	if err != nil {
		return Totals{}, fmt.Errorf("reading the API server's metrics: %w", err)
	}
	totals := Totals{Counts: map[Answered]int{}}
	for _, metric := range families[startMetric].GetMetric() {
		totals.Started = metric.GetGauge().GetValue() + metric.GetUntyped().GetValue()
	}
	for _, metric := range families[requestsMetric].GetMetric() {
		labels := labelMap(metric)
		if strings.HasPrefix(labels["verb"], "WATCH") || labels["resource"] == "" {
			continue
		}
		code, err := strconv.Atoi(labels["code"])
		if err != nil {
			return Totals{}, fmt.Errorf("reading the API server's metrics: %s has the code %q", requestsMetric, labels["code"])
		}
		answered := Answered{
			Method: labels["verb"], Group: labels["group"], Code: code,
			Resource: resourceName(labels["resource"], labels["subresource"]),
		}
		totals.Counts[answered] += int(metric.GetCounter().GetValue() + metric.GetUntyped().GetValue())
	}
	return totals, nil
}

// only returns the lines about some metrics: parsing all of them takes many times as long.
func only(body []byte, names ...string) []byte {
	var kept bytes.Buffer
	lines := bufio.NewReader(bytes.NewReader(body))
	for {
		line, err := lines.ReadBytes('\n')
		for _, name := range names {
			if bytes.HasPrefix(line, []byte(name+"{")) || bytes.HasPrefix(line, []byte(name+" ")) {
				kept.Write(line)
			}
		}
		if err != nil {
			return kept.Bytes()
		}
	}
}

func labelMap(metric *dto.Metric) map[string]string {
	labels := map[string]string{}
	for _, label := range metric.GetLabel() {
		labels[label.GetName()] = label.GetValue()
	}
	return labels
}

func resourceName(resource, subresource string) string {
	if subresource == "" {
		return resource
	}
	return resource + "/" + subresource
}

func totalsKey(group, resource string) string {
	if group == "" {
		return resource
	}
	return resource + "." + group
}
