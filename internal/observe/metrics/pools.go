package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// pool identifies the Machines of a deployment by the first two labels of perPool.
type pool struct{ namespace, deployment string }

// vector is a metric vector whose labels include those of pool.
type vector interface {
	DeletePartialMatch(labels prometheus.Labels) int
}

// pools deletes the series of pools that no longer exist.
type pools struct {
	vectors []vector

	mu sync.Mutex
	// missing contains all pools that have series. The value reports whether the last scrape did not
	// find the pool.
	missing map[pool]bool
}

func newPools(vectors ...vector) *pools { return &pools{vectors: vectors, missing: map[pool]bool{}} }

// record calls write, which sets a series with the labels, and remembers its pool.
func (p *pools) record(labels []string, write func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.missing[pool{labels[0], labels[1]}] = false
	write()
}

// drop deletes the series of pools that two consecutive scrapes did not find. The first of them
// still exports their last values.
func (p *pools) drop(existing map[pool]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for known, missing := range p.missing {
		switch {
		case existing[known]:
			p.missing[known] = false
		case !missing:
			p.missing[known] = true
		default:
			for _, v := range p.vectors {
				v.DeletePartialMatch(prometheus.Labels{perPool[0]: known.namespace, perPool[1]: known.deployment})
			}
			delete(p.missing, known)
		}
	}
}

// poolsOf returns the pools that have a Machine or a deployment.
func poolsOf(machines []v1alpha1.Machine, deployments []v1alpha1.MachineDeployment) map[pool]bool {
	existing := map[pool]bool{}
	for i := range machines {
		existing[pool{machines[i].Namespace, machines[i].Labels[deploymentLabel]}] = true
	}
	for i := range deployments {
		existing[pool{deployments[i].Namespace, deployments[i].Name}] = true
	}
	return existing
}
