package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func TestVMAuthority_Metrics(t *testing.T) {
	var state VMAuthorityState
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(&VMAuthority{State: func() VMAuthorityState { return state }, Registerer: registry})
	if got := series(t, registry); len(got) > 0 {
		t.Errorf("a process that does not lead exports %v", got)
	}
	state = VMAuthorityState{Phase: "Distributing", Pending: 2, Expires: time.Unix(1000, 0)}
	got := strings.Join(series(t, registry), "\n")
	for _, want := range []string{"expiration_timestamp_seconds", "rotation", "Distributing", "pending_hypervisors"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is missing in:\n%s", want, got)
		}
	}
}
