package ui

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	prometheus "github.com/prometheus/common/model"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Metrics are the metrics of the processes of a manager, in the text format of Prometheus.
type Metrics struct {
	// Source describes where the metrics come from.
	Source string
	// Texts are the responses of the processes. The caller closes them.
	Texts []io.ReadCloser
}

// Close closes the responses.
func (m Metrics) Close() {
	for _, text := range m.Texts {
		_ = text.Close() // it was read
	}
}

// Limits of a response. Most of its lines describe single objects, and are skipped.
const (
	maxMetricsRead = 32 << 20
	maxMetricsKept = 1 << 20
	maxMetricsLine = 64 << 10
)

// maxLabel limits the label of a series, and maxSeries the series of a plot in a sample.
const (
	maxLabel  = 100
	maxSeries = 100
)

// plot is a plot of metrics of the manager.
type plot struct {
	name, title, unit string
	// rate reports whether the metrics are counters, whose increase per second is shown.
	rate bool
	// metrics are the metrics of the plot by name, with the label of a series.
	metrics map[string]func(labels map[string]string) string
}

// plots are all plots, in their order on the page. The values of several metrics with the same label are added up.
var plots = []plot{
	{name: "join", title: "Join, of the last machine that joined", unit: "s", metrics: byPool("mcm_machine_join_duration_seconds")},
	{name: "drain", title: "Drain, of the last node that was drained", unit: "s", metrics: byPool("mcm_machine_drain_duration_seconds")},
	{name: "delete", title: "Deletion, of the last machine that was deleted", unit: "s", metrics: byPool("mcm_machine_delete_duration_seconds")},
	{name: "driver", title: "Driver calls by code", unit: "/s", rate: true, metrics: map[string]func(map[string]string) string{
		"mcm_cloud_api_driver_request_duration_seconds": func(map[string]string) string { return codes.OK.String() }, // of successful calls
		"mcm_cloud_api_driver_requests_failed_total":    func(labels map[string]string) string { return codeOf(labels["error_code"]) },
	}},
	{name: "requests", title: "Requests to API servers by status", unit: "/s", rate: true, metrics: byLabel("rest_client_requests_total", "code")},
	{name: "queues", title: "Depth of queues", metrics: byLabel("mcm_workqueue_depth", "name")},
}

func byLabel(metric, label string) map[string]func(map[string]string) string {
	return map[string]func(map[string]string) string{metric: func(labels map[string]string) string { return labels[label] }}
}

func byPool(metric string) map[string]func(map[string]string) string {
	return map[string]func(map[string]string) string{metric: func(labels map[string]string) string {
		label := labels["namespace"] + "/" + labels["machine_deployment"]
		for _, name := range []string{"instance_type", "zone"} {
			if value := labels[name]; value != "" {
				label += " " + value
			}
		}
		return label
	}}
}

// codeOf returns the name of an error code of drivers, which is a number in the metrics.
func codeOf(number string) string {
	code, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return number
	}
	return codes.Code(code).String()
}

// values are the values of a plot by the labels of its series.
type values map[string]float64

// readMetrics returns the values of all plots, by the names of the plots.
func readMetrics(ctx context.Context, read func(context.Context) (Metrics, error)) (source string, all map[string]values, err error) {
	metrics, err := read(ctx)
	if err != nil {
		return "", nil, err
	}
	defer metrics.Close()
	all = map[string]values{}
	for _, text := range metrics.Texts {
		if err := addMetrics(text, all); err != nil {
			return "", nil, fmt.Errorf("cannot read the metrics of %s: %w", metrics.Source, err)
		}
	}
	return metrics.Source, all, nil
}

// addMetrics adds the values in a response.
func addMetrics(text io.Reader, to map[string]values) error {
	kept, err := relevant(text)
	if err != nil {
		return err
	}
	parser := expfmt.NewTextParser(prometheus.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(kept))
	if err != nil {
		return err
	}
	for _, plot := range plots {
		for name, label := range plot.metrics {
			if families[name] == nil {
				continue
			}
			if to[plot.name] == nil {
				to[plot.name] = values{}
			}
			for _, metric := range families[name].Metric {
				to[plot.name].add(labelOf(metric, label), valueOf(metric))
			}
		}
	}
	return nil
}

func (v values) add(label string, value float64) {
	if _, exists := v[label]; exists || len(v) < maxSeries {
		v[label] += value
	}
}

func labelOf(metric *dto.Metric, label func(map[string]string) string) string {
	labels := map[string]string{}
	for _, pair := range metric.Label {
		labels[pair.GetName()] = pair.GetValue()
	}
	return messages.Shorten(messages.Line(label(labels)), maxLabel)
}

// valueOf returns the value of a metric, or the number of observations of a histogram.
func valueOf(metric *dto.Metric) float64 {
	switch {
	case metric.Gauge != nil:
		return metric.Gauge.GetValue()
	case metric.Counter != nil:
		return metric.Counter.GetValue()
	case metric.Histogram != nil:
		return float64(metric.Histogram.GetSampleCount())
	}
	return metric.Untyped.GetValue()
}

// relevant returns the lines about metrics that are plotted.
func relevant(text io.Reader) (string, error) {
	limited := &io.LimitedReader{R: text, N: maxMetricsRead}
	lines := bufio.NewScanner(limited)
	lines.Buffer(nil, maxMetricsLine)
	var kept strings.Builder
	for lines.Scan() {
		line := lines.Bytes()
		if !isRelevant(line) {
			continue
		}
		if kept.Len()+len(line) > maxMetricsKept {
			return "", errors.New("the response is too large")
		}
		kept.Write(line)
		kept.WriteByte('\n')
	}
	if limited.N <= 0 {
		return "", errors.New("the response is too large")
	}
	return kept.String(), lines.Err()
}

// isRelevant reports whether a line is a value or the type of a metric that is plotted. Buckets of histograms are not.
func isRelevant(line []byte) bool {
	name, isType := bytes.CutPrefix(line, []byte("# TYPE "))
	if end := bytes.IndexAny(name, "{ "); end > 0 {
		name = name[:end]
	}
	if !isType {
		name = bytes.TrimSuffix(name, []byte("_count"))
	}
	return plotted[string(name)]
}

// plotted are the names of all metrics that are plotted.
var plotted = func() map[string]bool {
	names := map[string]bool{}
	for _, plot := range plots {
		for name := range plot.metrics {
			names[name] = true
		}
	}
	return names
}()
