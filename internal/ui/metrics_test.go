package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// response is what a manager serves, with the number of successful calls, requests to API servers, and a drain's duration.
func response(calls, requests int, drain string) string {
	return fmt.Sprintf(`# HELP mcm_machine_info A machine, always 1.
# TYPE mcm_machine_info gauge
mcm_machine_info{name="x",namespace="n"} 1
# HELP mcm_machine_drain_duration_seconds Duration of the last drain of a node, in seconds.
# TYPE mcm_machine_drain_duration_seconds gauge
mcm_machine_drain_duration_seconds{machine_deployment="<b>\n\"pool\"",namespace="n"} %s
# TYPE mcm_cloud_api_driver_request_duration_seconds histogram
mcm_cloud_api_driver_request_duration_seconds_bucket{operation="Create",provider="sim",le="1"} 1
mcm_cloud_api_driver_request_duration_seconds_bucket{operation="Create",provider="sim",le="+Inf"} %d
mcm_cloud_api_driver_request_duration_seconds_sum{operation="Create",provider="sim"} 9
mcm_cloud_api_driver_request_duration_seconds_count{operation="Create",provider="sim"} %d
# TYPE mcm_cloud_api_driver_requests_failed_total counter
mcm_cloud_api_driver_requests_failed_total{error_code="8",operation="Create",provider="sim"} 4
mcm_cloud_api_driver_requests_failed_total{error_code="8",operation="Delete",provider="sim"} 1
# TYPE rest_client_requests_total counter
rest_client_requests_total{code="200",host="a",method="GET"} %d
# TYPE mcm_workqueue_depth gauge
mcm_workqueue_depth{name="machine",priority="0"} 2
mcm_workqueue_depth{name="machine",priority="1"} 3
`, drain, calls, calls, requests)
}

func metricsOf(texts ...string) Metrics {
	m := Metrics{Source: "the test"}
	for _, text := range texts {
		m.Texts = append(m.Texts, io.NopCloser(strings.NewReader(text)))
	}
	return m
}

// plotNamed returns a plot.
func plotNamed(h *history, name string) Plot {
	for _, plot := range h.plots(time.Now()).Plots {
		if plot.Name == name {
			return plot
		}
	}
	return Plot{}
}

// TestPlots_ShowMetrics checks the series of all kinds of plots, of a manager in two processes.
func TestPlots_ShowMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, requests := 10, 100
		h := newHistory(func(context.Context) (Metrics, error) {
			return metricsOf(response(calls, requests, "30"), response(0, 0, "0")), nil
		})
		h.scrape(t.Context())
		time.Sleep(10 * time.Second) // fake
		calls, requests = 30, 20     // the latter was restarted
		h.scrape(t.Context())

		for name, want := range map[string]string{
			"join": "", "drain": `s: n/<b> "pool" [30 30]`, "driver": "/s: OK [2], ResourceExhausted [0]", "requests": "/s: 200 [2]", "queues": ": machine [10 10]",
		} {
			plot := plotNamed(h, name)
			var series []string
			for _, line := range plot.Series {
				series = append(series, fmt.Sprint(line.Label, " ", line.Values))
			}
			got := plot.Unit + ": " + strings.Join(series, ", ")
			if want == "" {
				want = plot.Unit + ": " // no series
			}
			if got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
	})
}

// TestPlots_ReadOnlyWhileTabsAreOpen checks how often metrics are read, how long they are kept, and that a gap interrupts
// the lines.
func TestPlots_ReadOnlyWhileTabsAreOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		h := newHistory(func(context.Context) (Metrics, error) { reads++; return metricsOf(response(1, 1, "5")), nil })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); h.run(ctx) }()
		time.Sleep(time.Hour) // fake, as all others
		if synctest.Wait(); reads != 0 {
			t.Fatalf("%d reads without a tab", reads)
		}
		first, second := h.open(), h.open()
		time.Sleep(61 * time.Second)
		if synctest.Wait(); reads != 7 {
			t.Errorf("%d reads in a minute with two tabs, want 7", reads)
		}
		first()
		second()
		time.Sleep(10 * time.Minute)
		if synctest.Wait(); reads > 8 {
			t.Errorf("%d reads, want none without tabs", reads)
		}
		third := h.open()
		time.Sleep(time.Minute)
		synctest.Wait()
		series := plotNamed(h, "drain").Series
		gaps := 0
		for _, line := range series {
			for _, value := range line.Values {
				if math.IsNaN(float64(value)) {
					gaps++
				}
			}
		}
		if len(series) != 1 || gaps != 1 {
			t.Errorf("%d gaps in %+v", gaps, series)
		}
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if n := len(plotNamed(h, "drain").Series[0].Values); n > 361 || n < 300 {
			t.Errorf("%d values are kept", n)
		}
		third()
		cancel()
		<-done
	})
}

// TestPlots_LimitResponses checks that large or invalid responses are rejected, and that many series are limited.
func TestPlots_LimitResponses(t *testing.T) {
	many := strings.Builder{}
	for i := range 1000 {
		fmt.Fprintf(&many, "mcm_workqueue_depth{name=\"queue-%04d\"} %d\n", i, i)
	}
	for name, tc := range map[string]struct {
		text    io.Reader
		problem string
	}{
		"valid":          {strings.NewReader(response(1, 1, "5")), ""},
		"empty":          {strings.NewReader(""), ""},
		"HTML":           {strings.NewReader("<html>not found</html>\n"), ""},
		"invalid":        {strings.NewReader("mcm_workqueue_depth{name= 1\n"), "start of label value"},
		"endless":        {&endless{text: "x{name=\"" + strings.Repeat("x", 4000) + "\"} 1\n"}, "too large"},
		"endless metric": {&endless{text: "mcm_workqueue_depth{name=\"q\"} 1\n"}, "too large"},
		"large":          {strings.NewReader(strings.Repeat("mcm_workqueue_depth{name=\"q\"} 1\n", maxMetricsKept/20)), "too large"},
		"long line":      {strings.NewReader(strings.Repeat("x", 1<<20)), "too long"},
		"many series":    {strings.NewReader(many.String()), ""},
	} {
		h := newHistory(func(context.Context) (Metrics, error) {
			return Metrics{Source: "the test", Texts: []io.ReadCloser{io.NopCloser(tc.text)}}, nil
		})
		h.scrape(t.Context())
		got := h.plots(time.Now())
		if (got.Problem == "") != (tc.problem == "") || !strings.Contains(got.Problem, tc.problem) {
			t.Errorf("%s: %q", name, got.Problem)
		}
		if name == "many series" {
			if of := plotNamed(h, "queues"); len(of.Series) != shownSeries || of.More != maxSeries-shownSeries {
				t.Errorf("%d series, %d more", len(of.Series), of.More)
			}
		}
	}
}

// endless repeats a text.
type endless struct {
	text string
	at   int
}

func (e *endless) Read(into []byte) (int, error) {
	n := copy(into, e.text[e.at:])
	e.at = (e.at + n) % len(e.text)
	return n, nil
}

// TestPlots_ReportProblems checks that the page gets the reason why there are no metrics, also after there were some.
func TestPlots_ReportProblems(t *testing.T) {
	problem := errors.New("pods is forbidden; set --metrics-url")
	h := newHistory(func(context.Context) (Metrics, error) { return metricsOf(response(1, 1, "NaN")), problem })
	h.scrape(t.Context())
	if got := h.plots(time.Now()); got.Problem != problem.Error() || !got.Enabled || len(got.Plots) != len(plots) {
		t.Errorf("%+v", got)
	}
	problem = nil
	h.scrape(t.Context())
	got := h.plots(time.Now())
	if text, err := json.Marshal(got); err != nil || got.Problem != "" || got.Source != "the test" || !strings.Contains(string(text), "[null]") {
		t.Errorf("%+v, %v", got, err)
	}
	if got := newHistory(nil).plots(time.Now()); got.Enabled {
		t.Errorf("%+v", got)
	}
}
