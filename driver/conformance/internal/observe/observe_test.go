package observe

import (
	"strings"
	"testing"
)

// TestLog_ContainsAllButBodies: the log contains everything that a driver logs, except for the bodies that client-go logs.
func TestLog_ContainsAllButBodies(t *testing.T) {
	log := &Log{}
	logger := log.Logger()
	logger.V(8).Info("Request Body", "body", "a secret in a body")
	logger.V(9).WithValues("token", "a secret of the driver").Info("Asking")
	if logged := strings.Join(log.Take(), "\n"); strings.Contains(logged, "in a body") || !strings.Contains(logged, "of the driver") || !strings.Contains(logged, "Request Body") {
		t.Errorf("logged: %s", logged)
	}
}
