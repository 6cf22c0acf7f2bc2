package metrics

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var authorityExpires = prometheus.NewDesc("millwright_virtual_machine_authority_expiration_timestamp_seconds",
	"When the certificate authority of hypervisors expires, in seconds since the epoch.",
	nil, nil)

var authorityRotation = prometheus.NewDesc("millwright_virtual_machine_authority_rotation",
	"The phase of the rotation of the certificate authority of hypervisors, always 1: None, Distributing or Retiring.",
	[]string{"phase"}, nil)

var authorityPending = prometheus.NewDesc("millwright_virtual_machine_authority_pending_hypervisors",
	"Number of hypervisors that do not trust the next certificate authority yet.",
	nil, nil)

// VMAuthorityState is the state of the certificate authority of hypervisors.
type VMAuthorityState struct {
	// Phase is the phase of its rotation. Empty means unknown; there are no series then.
	Phase string
	// Pending is the number of hypervisors that do not trust the next authority yet.
	Pending int
	// Expires is when its certificate expires.
	Expires time.Time
}

// VMAuthority exports the state of the certificate authority of hypervisors. Add it to a manager.
type VMAuthority struct {
	// State returns the state.
	State func() VMAuthorityState
	// Registerer is where the metrics are registered while VMAuthority runs.
	Registerer prometheus.Registerer
}

// NeedLeaderElection returns true because only the leader rotates the authority.
func (a *VMAuthority) NeedLeaderElection() bool { return true }

// Start registers the metrics and unregisters them when ctx is done. If several managers run in one process, the first
// one exports them.
func (a *VMAuthority) Start(ctx context.Context) error {
	if err := export(ctx, a.Registerer, a); err != nil {
		return fmt.Errorf("registering the metrics of the certificate authority: %w", err)
	}
	return nil
}

// Describe implements prometheus.Collector.
func (a *VMAuthority) Describe(ch chan<- *prometheus.Desc) {
	ch <- authorityExpires
	ch <- authorityRotation
	ch <- authorityPending
}

// Collect implements prometheus.Collector.
func (a *VMAuthority) Collect(ch chan<- prometheus.Metric) {
	state := a.State()
	if state.Phase == "" {
		return
	}
	ch <- prometheus.MustNewConstMetric(authorityExpires, prometheus.GaugeValue, float64(state.Expires.Unix()))
	ch <- prometheus.MustNewConstMetric(authorityRotation, prometheus.GaugeValue, 1, state.Phase)
	ch <- prometheus.MustNewConstMetric(authorityPending, prometheus.GaugeValue, float64(state.Pending))
}
