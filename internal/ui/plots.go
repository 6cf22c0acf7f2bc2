package ui

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	// metricsInterval is the minimum time between two reads of the metrics, and metricsTimeout limits how long one takes.
	metricsInterval = 10 * time.Second
	metricsTimeout  = 8 * time.Second
	// metricsHistory is how long values are kept.
	metricsHistory = time.Hour
	// leastShown is the least time that the plots show.
	leastShown = 5 * time.Minute
	// metricsGap is the time between two values above which a line is interrupted.
	metricsGap = 3 * metricsInterval
	// shownSeries limits the series of a plot on the page, to those with the highest values.
	shownSeries = 8
)

// history keeps the metrics of the last hour. It reads them only while tabs are open.
type history struct {
	read func(context.Context) (Metrics, error)
	wake chan struct{}

	mu      sync.Mutex
	tabs    int
	samples []sample
	source  string
	// problem is why the last read failed. It is empty if it did not.
	problem string
}

// sample has the values of one read, by the names of the plots.
type sample struct {
	at     time.Time
	values map[string]values
}

func newHistory(read func(context.Context) (Metrics, error)) *history {
	return &history{read: read, wake: make(chan struct{}, 1)}
}

// open records that a tab is open, until the returned function is called.
func (h *history) open() (closed func()) {
	h.mu.Lock()
	h.tabs++
	h.mu.Unlock()
	select {
	case h.wake <- struct{}{}:
	default:
	}
	return func() {
		h.mu.Lock()
		h.tabs--
		h.mu.Unlock()
	}
}

func (h *history) hasTabs() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.tabs > 0
}

// run reads the metrics while tabs are open, until ctx is done.
func (h *history) run(ctx context.Context) {
	if h.read == nil {
		return
	}
	for {
		for !h.hasTabs() {
			select {
			case <-ctx.Done():
				return
			case <-h.wake:
			}
		}
		h.scrape(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(metricsInterval):
		}
	}
}

func (h *history) scrape(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	source, all, err := readMetrics(ctx, h.read)
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	first := slices.IndexFunc(h.samples, func(s sample) bool { return now.Sub(s.at) <= metricsHistory })
	if first < 0 {
		first = len(h.samples)
	}
	h.samples = slices.Delete(h.samples, 0, first)
	if err != nil {
		h.problem = err.Error()
		return
	}
	if source != h.source { // counters of another process are not comparable
		h.samples = nil
	}
	h.source, h.problem = source, ""
	h.samples = append(h.samples, sample{now, all})
}

// Plots is what the page draws.
type Plots struct {
	// Enabled reports whether the command reads metrics.
	Enabled bool `json:"enabled"`
	// Source is where the metrics come from. It is empty before the first successful read.
	Source string `json:"source,omitempty"`
	// Problem is why the last read failed.
	Problem string `json:"problem,omitempty"`
	// From and To are the time that the plots show, in seconds since 1970.
	From  int64  `json:"from"`
	To    int64  `json:"to"`
	Plots []Plot `json:"plots"`
}

// Plot is a plot of several series.
type Plot struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	// Unit is "s", "/s", or empty for numbers.
	Unit string `json:"unit,omitempty"`
	// Series are those with the highest values, and More is how many are not shown.
	Series []Series `json:"series,omitempty"`
	More   int      `json:"more,omitempty"`
}

// Series is a line of a plot. Times are in seconds since 1970, one for each value.
type Series struct {
	Label  string  `json:"label"`
	Times  []int64 `json:"times"`
	Values []Value `json:"values"`
}

// Value is a number. NaN interrupts the line.
type Value float64

// MarshalJSON implements json.Marshaler. JSON has no NaN.
func (v Value) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(v), 'g', 6, 64), nil
}

// plots returns all plots.
func (h *history) plots(now time.Time) Plots {
	h.mu.Lock()
	defer h.mu.Unlock()
	from := now.Add(-leastShown)
	if len(h.samples) > 0 && h.samples[0].at.Before(from) {
		from = h.samples[0].at
	}
	all := Plots{Enabled: h.read != nil, Source: h.source, Problem: h.problem, From: seconds(from), To: seconds(now)}
	for _, of := range plots {
		shown := Plot{Name: of.name, Title: of.title, Unit: of.unit, Series: seriesOf(of, h.samples)}
		slices.SortFunc(shown.Series, func(a, b Series) int {
			return cmp.Or(cmp.Compare(b.highest(), a.highest()), cmp.Compare(a.Label, b.Label))
		})
		shown.More = max(0, len(shown.Series)-shownSeries)
		shown.Series = shown.Series[:len(shown.Series)-shown.More]
		slices.SortFunc(shown.Series, func(a, b Series) int { return cmp.Compare(a.Label, b.Label) })
		all.Plots = append(all.Plots, shown)
	}
	return all
}

func (s Series) highest() Value {
	highest := Value(math.Inf(-1))
	for _, value := range s.Values {
		if value > highest { // false for NaN
			highest = value
		}
	}
	return highest
}

// seriesOf returns all series of a plot.
func seriesOf(of plot, samples []sample) []Series {
	labels := map[string]bool{}
	for _, sample := range samples {
		for label := range sample.values[of.name] {
			labels[label] = true
		}
	}
	var series []Series
	for _, label := range slices.Sorted(maps.Keys(labels)) {
		line := Series{Label: label}
		for i, sample := range samples {
			if i > 0 && sample.at.Sub(samples[i-1].at) > metricsGap {
				line.add(samples[i-1].at.Add(time.Second), math.NaN())
			}
			value, exists := sample.values[of.name][label]
			switch {
			case !exists:
				line.add(sample.at, math.NaN())
			case !of.rate:
				line.add(sample.at, value)
			case i > 0:
				line.add(sample.at, rate(samples[i-1], sample, of.name, label))
			}
		}
		if len(line.Values) > 0 {
			series = append(series, line)
		}
	}
	return series
}

func (s *Series) add(at time.Time, value float64) {
	s.Times, s.Values = append(s.Times, at.Unix()), append(s.Values, Value(value))
}

// rate returns the increase of a counter per second. A counter that is lower than before has been restarted from 0, and one
// that is new has begun at 0.
func rate(before, after sample, plot, label string) float64 {
	increase := after.values[plot][label] - before.values[plot][label]
	if increase < 0 {
		increase = after.values[plot][label]
	}
	return increase / after.at.Sub(before.at).Seconds()
}
