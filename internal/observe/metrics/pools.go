package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// pool names the Machines of a deployment, by the first labels of perPool.
type pool struct{ namespace, deployment string }

// vector has the labels of pool, perhaps among others.
type vector interface {
	DeletePartialMatch(labels prometheus.Labels) int
}

// pools drops the series of pools that are gone.
type pools struct {
	vectors []vector

	mu sync.Mutex
	// missing has all pools that have series, and whether the last scrape did not find them.
	missing map[pool]bool
}

func newPools(vectors ...vector) *pools { return &pools{vectors: vectors, missing: map[pool]bool{}} }

// record has a function write a series with the labels.
func (p *pools) record(labels []string, write func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.missing[pool{labels[0], labels[1]}] = false
	write()
}

// drop removes the series of pools that are not there for a second scrape: the first one has
// their last values.
func (p *pools) drop(there map[pool]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for known, missing := range p.missing {
		switch {
		case there[known]:
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

// poolsOf are the pools that have a Machine or a deployment.
func poolsOf(machines []v1alpha1.Machine, deployments []v1alpha1.MachineDeployment) map[pool]bool {
	there := map[pool]bool{}
	for i := range machines {
		there[pool{machines[i].Namespace, machines[i].Labels[deploymentLabel]}] = true
	}
	for i := range deployments {
		there[pool{deployments[i].Namespace, deployments[i].Name}] = true
	}
	return there
}
