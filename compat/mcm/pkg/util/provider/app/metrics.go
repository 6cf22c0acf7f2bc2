package app

import (
	"cmp"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// serveDefaultMetrics makes the manager also serve the metrics that a provider registered with
// prometheus.DefaultRegisterer, as MCM does. The manager already has those of Go and of the process.
func serveDefaultMetrics() {
	prometheus.Unregister(collectors.NewGoCollector())
	prometheus.Unregister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	metrics.Registry = &merged{RegistererGatherer: metrics.Registry, more: prometheus.DefaultGatherer}
}

// merged is a registry that includes the metrics of another one. Problems with the other metrics do not make the
// page fail.
type merged struct {
	metrics.RegistererGatherer
	more prometheus.Gatherer

	mu sync.Mutex
	// logged contains the names of metrics and the texts of errors that were logged.
	logged map[string]bool
}

// mostLogged is the maximum number of logged problems, because the text of an error may differ each time.
const mostLogged = 100

// Gather implements prometheus.Gatherer. If both registries have a metric of the same name, the registry's own is
// used.
func (m *merged) Gather() ([]*dto.MetricFamily, error) {
	families, err := m.RegistererGatherer.Gather()
	own := map[string]bool{}
	for _, family := range families {
		own[family.GetName()] = true
	}
	more, problem := m.more.Gather() // with a problem, it still returns the other metrics
	if problem != nil {
		m.once(problem.Error(), "Cannot gather some metrics of the provider")
	}
	for _, family := range more {
		if own[family.GetName()] {
			m.once(family.GetName(), "Ignored a metric of the provider because the manager has a metric of the same name")
			continue
		}
		families = append(families, family)
	}
	slices.SortFunc(families, func(a, b *dto.MetricFamily) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return families, err
}

// once logs a problem the first time it occurs.
func (m *merged) once(about, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.logged[about] || len(m.logged) == mostLogged {
		return
	}
	if m.logged == nil {
		m.logged = map[string]bool{}
	}
	m.logged[about] = true
	klog.Background().Info(text, "problem", about)
}
