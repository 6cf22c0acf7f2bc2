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

// serveDefaultMetrics has the manager serve, beside its own metrics, those that a provider registered with
// prometheus.DefaultRegisterer, as MCM does. The manager has those of Go and of the process itself.
func serveDefaultMetrics() {
	prometheus.Unregister(collectors.NewGoCollector())
	prometheus.Unregister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	metrics.Registry = &merged{RegistererGatherer: metrics.Registry, more: prometheus.DefaultGatherer}
}

// merged is a registry with the metrics of another one. Nothing that is wrong with these makes the whole
// page fail.
type merged struct {
	metrics.RegistererGatherer
	more prometheus.Gatherer

	mu sync.Mutex
	// logged are the names of metrics and the texts of errors that were logged.
	logged map[string]bool
}

// mostLogged is how many problems are logged at most: the text of an error may be another one each time.
const mostLogged = 100

// Gather implements prometheus.Gatherer. Of two metrics of one name, the registry's own count.
func (m *merged) Gather() ([]*dto.MetricFamily, error) {
	families, err := m.RegistererGatherer.Gather()
	own := map[string]bool{}
	for _, family := range families {
		own[family.GetName()] = true
	}
	more, problem := m.more.Gather() // also with a problem it has the others
	if problem != nil {
		m.once(problem.Error(), "Some metrics of the provider cannot be gathered")
	}
	for _, family := range more {
		if own[family.GetName()] {
			m.once(family.GetName(), "The provider has a metric of a name that the manager has, too. It is left out")
			continue
		}
		families = append(families, family)
	}
	slices.SortFunc(families, func(a, b *dto.MetricFamily) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return families, err
}

// once logs a problem the first time that it occurs.
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
