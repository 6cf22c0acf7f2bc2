package authority

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
)

// TestRegistry_BacksOffAfterFailure includes end times in the future, which come from a clock that was ahead. The drain of a
// host must not wait for such a time.
func TestRegistry_BacksOffAfterFailure(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	r := &Registry{Clock: testingclock.NewFakePassiveClock(now)}
	for name, test := range map[string]struct {
		ended   time.Duration // after now
		failed  int32
		reason  string
		pause   time.Duration
		refused bool
	}{
		"just now":                  {0, 0, migration.ReasonCopyFailed, retryPause, false},
		"many failures":             {-time.Second, 100, migration.ReasonCopyFailed, maxRetryPause - time.Second, false},
		"long ago":                  {-time.Hour, 100, migration.ReasonCopyFailed, 0, false},
		"no capacity a minute ago":  {-noCapacityFor, 0, migration.ReasonUnschedulable, 0, false},
		"in the future":             {24 * time.Hour, 0, migration.ReasonCopyFailed, 0, false},
		"no capacity just now":      {0, 0, migration.ReasonUnschedulable, 0, true},
		"refused just now":          {0, 0, migration.ReasonRefused, 0, true},
		"no capacity in the future": {24 * time.Hour, 0, migration.ReasonUnschedulable, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			end := metav1.NewTime(now.Add(test.ended))
			got := r.afterFailure(&v1alpha1.VirtualMachineMigration{
				Phase: v1alpha1.MigrationFailed, TargetPodName: "t", EndTime: &end, Failures: test.failed, Reason: test.reason, Message: "why",
			}, true, "")
			if got.Pause != test.pause || (got.Refusal != "") != test.refused {
				t.Errorf("got %+v", got)
			}
		})
	}
}
