package balancer

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/tools/leaderelection"
	ctrl "sigs.k8s.io/controller-runtime"
)

// The process that leads renews its lease every retryPeriod, and gives up renewDeadline after the last time; another one
// leads from leaseDuration on. The lease is not released, so that nothing that an ending process still writes meets
// one that leads: meanwhile all ports are served, only new Clusters wait.
const leaseDuration, renewDeadline, retryPeriod = 15 * time.Second, 10 * time.Second, 2 * time.Second

// elect takes part in the election until the context ends. A process that does not lead any more, as while the API server
// is away, goes on to forward: so it stands for election again, where others end.
func (c *Controller) elect(ctx context.Context) error {
	if c.Lock == nil {
		return nil
	}
	for ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: c.Lock, Name: c.Lock.Describe(), LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
			Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: c.lead, OnStoppedLeading: c.standBy},
		})
		if err != nil {
			return fmt.Errorf("leader election: %w", err)
		}
		elector.Run(ctx)
	}
	return nil
}

// leading reports whether this process gives ports away.
func (c *Controller) leading() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leads
}

// lead begins to give ports away, unless the context of the leadership has ended: it runs beside the elector.
func (c *Controller) lead(ctx context.Context) {
	c.mu.Lock()
	c.leads = ctx.Err() == nil
	c.mu.Unlock()
	keys, err := c.keys(ctx)
	if err != nil {
		ctrl.LoggerFrom(ctx).Info("The MillwrightClusters cannot be read", "err", err.Error()) // the cache is closed: this process ends
		return
	}
	for _, key := range keys {
		c.waker.Wake(key)
	}
}

func (c *Controller) standBy() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leads = false
	for _, e := range c.open {
		e.chosen = false
	}
}
