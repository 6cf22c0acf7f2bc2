package env

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/rest"
)

// requestTotals is what an API server says that it has answered since it started.
type requestTotals struct {
	// started tells one life of the API server from the next.
	started float64
	// counts is by group and resource; watches are not in it, since they are
	// counted when they end.
	counts map[string]int
}

const (
	requestsMetric = "apiserver_request_total"
	startMetric    = "process_start_time_seconds"
)

// scrape asks for the API server's own count.
func scrape(ctx context.Context, client rest.Interface) (requestTotals, error) {
	body, err := client.Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return requestTotals{}, fmt.Errorf("asking for the API server's metrics: %w", err)
	}
	return parseTotals(body)
}

func parseTotals(body []byte) (requestTotals, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(only(body, requestsMetric, startMetric)))
	if err != nil {
		return requestTotals{}, fmt.Errorf("reading the API server's metrics: %w", err)
	}
	totals := requestTotals{counts: map[string]int{}}
	for _, metric := range families[startMetric].GetMetric() {
		totals.started = metric.GetGauge().GetValue() + metric.GetUntyped().GetValue()
	}
	for _, metric := range families[requestsMetric].GetMetric() {
		labels := labelMap(metric)
		if strings.HasPrefix(labels["verb"], "WATCH") || labels["resource"] == "" {
			continue
		}
		value := metric.GetCounter().GetValue() + metric.GetUntyped().GetValue()
		totals.counts[totalsKey(labels["group"], resourceName(labels["resource"], labels["subresource"]))] += int(value)
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
