package crash

import (
	"fmt"
	"io"
	"net"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// usage is the resource usage of a manager.
type usage struct {
	goroutines, files, heap float64
}

func (u usage) String() string {
	return fmt.Sprintf("%.0f goroutines, %.0f open files and %.1f MiB of heap", u.goroutines, u.files, u.heap/(1<<20))
}

// usage returns a manager's resource usage after a garbage collection.
func (p *process) usage() (usage, error) {
	if err := p.get("/debug/pprof/heap?gc=1", func(io.Reader) error { return nil }); err != nil {
		return usage{}, err
	}
	var families map[string]*dto.MetricFamily
	err := p.get("/metrics", func(text io.Reader) (err error) {
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err = parser.TextToMetricFamilies(text)
		return err
	})
	if err != nil {
		return usage{}, err
	}
	value := func(name string) float64 {
		var sum float64
		for _, metric := range families[name].GetMetric() {
			sum += metric.GetGauge().GetValue()
		}
		return sum
	}
	return usage{value("go_goroutines"), value("process_open_fds"), value("go_memstats_heap_alloc_bytes")}, nil
}

// get sends an HTTP request to a manager.
func (p *process) get(path string, read func(io.Reader) error) error {
	response, err := http.Get("http://" + net.JoinHostPort("127.0.0.1", fmt.Sprint(p.port)) + path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, response.Status)
	}
	return read(response.Body)
}

// freePort returns an unused port.
func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}
