package balancer

import (
	"fmt"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
)

// plan is what must be done for a MillwrightCluster.
type plan struct {
	// port is the port to listen on; 0 if there is none.
	port int32
	// claim reports that the endpoint must first be set to the port.
	claim bool
	// reason and message explain why there is no port.
	reason, message string
}

// planFor returns the plan. A port that is the endpoint of a Cluster is never changed, because machines and
// kubeconfigs use it.
func planFor(f facts) plan {
	if f.endpoint.Known() {
		return planForEndpoint(f)
	}
	if f.paused || f.standby {
		return plan{} // the endpoint is set after the pause, or by the leader; both cause an event
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
		message: fmt.Sprintf("All ports of the load balancer (%d to %d) are used by other MillwrightClusters", f.first, f.last),
	}
}

func planForEndpoint(f facts) plan {
	port := f.endpoint.Port
	if port < f.first || port > f.last {
		return plan{
			reason:  infrav1.ReasonPortNotAllowed,
			message: fmt.Sprintf("Port %d of the endpoint is not one of the load balancer's ports (%d to %d)", port, f.first, f.last),
		}
	}
	other, taken := f.others[port]
	if f.open == port && !taken {
		return plan{port: port}
	}
	if f.tooMany() {
		return f.refusal()
	}
	if taken {
		return plan{reason: infrav1.ReasonPortTaken, message: fmt.Sprintf("Port %d is already used by MillwrightCluster %s", port, other)}
	}
	return plan{port: port}
}

// tooMany reports whether the namespace has reached the maximum number of ports without this MillwrightCluster.
func (f facts) tooMany() bool { return f.limit > 0 && f.siblings >= f.limit }

func (f facts) refusal() plan {
	return plan{
		reason:  infrav1.ReasonTooManyInNamespace,
		message: fmt.Sprintf("Other MillwrightClusters in this namespace already use the maximum of %d load balancer ports per namespace", f.limit),
	}
}
