package balancer

import (
	"fmt"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
)

// plan is what is to be done for a MillwrightCluster.
type plan struct {
	// port to listen at; 0 for none.
	port int32
	// claim says that the endpoint has to be set to it first.
	claim bool
	// reason and message say why there is no port.
	reason, message string
}

// planFor decides. A port that is the endpoint of a Cluster is never changed: machines and kubeconfigs have it.
func planFor(f facts) plan {
	if f.given.Known() {
		return planForGiven(f)
	}
	if f.paused || f.standsBy {
		return plan{} // it is set when the pause ends, or by the process that leads, which brings an event
	}
	if f.tooMany() {
		return f.refusal()
	}
	for port := f.first; port <= f.last; port++ {
		if _, taken := f.others[port]; !taken {
			return plan{port: port, claim: true}
		}
	}
	return plan{
		reason:  infrav1.ReasonNoFreePort,
		message: fmt.Sprintf("All ports of the load balancer, %d to %d, are endpoints of other MillwrightClusters", f.first, f.last),
	}
}

func planForGiven(f facts) plan {
	port := f.given.Port
	if port < f.first || port > f.last {
		return plan{
			reason:  infrav1.ReasonPortNotAllowed,
			message: fmt.Sprintf("The endpoint has port %d, and the load balancer has ports %d to %d", port, f.first, f.last),
		}
	}
	other, taken := f.others[port]
	if f.held == port && !taken {
		return plan{port: port}
	}
	if f.tooMany() {
		return f.refusal()
	}
	if taken {
		return plan{reason: infrav1.ReasonPortTaken, message: fmt.Sprintf("Port %d is that of MillwrightCluster %s", port, other)}
	}
	return plan{port: port}
}

// tooMany reports whether the namespace has as many ports as it may without this one.
func (f facts) tooMany() bool { return f.limit > 0 && f.siblings >= f.limit }

func (f facts) refusal() plan {
	return plan{
		reason:  infrav1.ReasonTooManyInNamespace,
		message: fmt.Sprintf("The load balancer gives a namespace %d ports, which other MillwrightClusters of this one have", f.limit),
	}
}
