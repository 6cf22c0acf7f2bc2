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
	// tryAgain is the time until a port that could not be opened is tried again.
	tryAgain = 10 * time.Second
	// claimLimit is how long the write of an endpoint may take. It is over before another process can lead.
	claimLimit = (leaseDuration - renewDeadline) / 2
	// longestMessage is the longest message of a condition.
	longestMessage = 300
)

// apply does what the plan says. What is new is tried by opening the port before it is written, so that nobody gets an
// endpoint that another process has.
func (c *Controller) apply(ctx context.Context, infra *infrav1.MillwrightCluster, f facts, p plan) (time.Duration, error) {
	key := client.ObjectKeyFromObject(infra)
	if p.port == 0 {
		c.close(key)
		c.await(key, p.reason)
		return 0, c.report(ctx, infra, f, p.reason, p.message)
	}
	if !p.claim {
		c.displace(key, p.port)
	}
	e, err := c.openPort(key, f, &p)
	if err != nil {
		return tryAgain, c.report(ctx, infra, f, infrav1.ReasonListenFailed, err.Error())
	}
	c.choose(e)
	e.SetServers(f.servers)
	if p.claim {
		changed := infra.DeepCopy()
		changed.Spec.ControlPlaneEndpoint = &infrav1.APIEndpoint{Host: c.Host, Port: p.port}
		claiming, cancel := context.WithTimeout(ctx, claimLimit)
		defer cancel()
		if err := c.Client.Patch(claiming, changed, expectations.Locked(infra)); err != nil {
			return 0, fmt.Errorf("setting the endpoint of MillwrightCluster %s: %w", key, err)
		}
		infra = changed
	}
	if e.Healthy(loadbalancer.Ready) > 0 {
		return 0, c.report(ctx, infra, f, infrav1.ReasonForwarding, "")
	}
	return 0, c.report(ctx, infra, f, infrav1.ReasonNoHealthyMachine, "No API server of the control plane machines is ready")
}

// openPort opens the port of a plan. One that is only to be claimed may be any that is free; the plan gets it.
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
