package hypervisor_test

import (
	"net/netip"
	"testing"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/ports"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// TestPorts_ReadinessIsReported checks that the report has the result of the check of the guest, and keeps its state.
func TestPorts_ReadinessIsReported(t *testing.T) {
	withFixture(t, func(w *fixture) {
		probe, err := ports.ParseProbe("tcp://:80")
		must(t, err)
		w.config.Network = []netip.Prefix{netip.MustParsePrefix("10.77.0.0/16")}
		w.config.Ports = &ports.Config{Probe: probe}
		w.start()
		report, err := w.controller.AwaitReport(t.Context(), func(r *vmpb.ReportStateRequest) bool {
			return r.GetState() == vmpb.ReportStateRequest_STATE_RUNNING && r.GetGuest() != nil
		})
		must(t, err)
		if got := report.GetGuest(); got.GetReady() || got.GetMessage() != "port 80 does not accept connections" {
			t.Errorf("the guest is %v", got)
		}
	})
}
