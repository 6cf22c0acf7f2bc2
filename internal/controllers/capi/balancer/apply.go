package balancer

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/loadbalancer"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

const (
	// listenRetryInterval is the time after which opening a port is retried.
	listenRetryInterval = 10 * time.Second
	// claimTimeout limits the write of an endpoint. It is over before another process can become the leader.
	claimTimeout = (leaseDuration - renewDeadline) / 2
	// maxMessage limits the length of a condition message, in bytes.
	maxMessage = 300
)

// apply executes a plan. It opens a new port before it writes the endpoint, so that no Cluster gets an endpoint whose
// port another process uses.
func (c *Controller) apply(ctx context.Context, infra *infrav1.MillwrightCluster, f facts, p plan) (time.Duration, error) {
	key := client.ObjectKeyFromObject(infra)
	if p.port == 0 {
		c.close(key)
		c.awaitPort(key, p.reason)
		return 0, c.report(ctx, infra, f, p.reason, p.message)
	}
	if !p.claim {
		c.displace(key, p.port)
	}
	e, err := c.openPort(key, f, &p)
	if err != nil {
		return listenRetryInterval, c.report(ctx, infra, f, infrav1.ReasonListenFailed, err.Error())
	}
	c.choose(e)
	e.SetServers(f.servers)
	if p.claim {
		changed := infra.DeepCopy()
		changed.Spec.ControlPlaneEndpoint = &infrav1.APIEndpoint{Host: c.Host, Port: p.port}
		claimCtx, cancel := context.WithTimeout(ctx, claimTimeout)
		defer cancel()
		if err := c.Client.Patch(claimCtx, changed, expectations.Locked(infra)); err != nil {
			return 0, fmt.Errorf("setting the endpoint of MillwrightCluster %s: %w", key, err)
		}
		infra = changed
	}
	reason, message := infrav1.ReasonForwarding, ""
	if e.Healthy(loadbalancer.Ready) == 0 {
		reason, message = infrav1.ReasonNoHealthyMachine, "No API server of the control plane machines is ready"
	}
	return 0, c.report(ctx, infra, f, reason, message+f.note(message))
}

// note returns an addition to a message about the machines that are not used. It is empty if all are.
func (f facts) note(message string) string {
	switch {
	case f.unused == "":
		return ""
	case message == "":
		return "Some control plane machines are not used: " + f.unused
	default:
		return "; some are not used: " + f.unused
	}
}

// openPort opens the port of a plan. If the port is not an endpoint yet and another process uses it, openPort tries
// the next free ones and updates the plan.
func (c *Controller) openPort(key client.ObjectKey, f facts, p *plan) (*endpoint, error) {
	for {
		e, err := c.listen(key, p.port)
		if err == nil || !p.claim || !errors.Is(err, syscall.EADDRINUSE) {
			return e, err
		}
		for p.port++; f.others[p.port].Name != ""; p.port++ {
			continue
		}
		if p.port > f.last {
			return nil, err
		}
	}
}
