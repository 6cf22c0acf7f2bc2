package lockstep

import (
	"encoding/json"
	"testing"

	"github.com/go-logr/logr/funcr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Logged runs one pass of a controller. It returns the lines that the pass logs at the default level, as
// "message: why", and its error.
func Logged(t *testing.T, controller reconcile.Reconciler, request reconcile.Request) ([]string, error) {
	t.Helper()
	var logged []string
	log := funcr.NewJSON(func(line string) {
		var output struct{ Msg, Why string }
		if err := json.Unmarshal([]byte(line), &output); err != nil {
			t.Errorf("line %q of the log: %v", line, err)
		}
		logged = append(logged, output.Msg+": "+output.Why)
	}, funcr.Options{})
	_, err := controller.Reconcile(ctrl.LoggerInto(t.Context(), log), request)
	return logged, err
}
