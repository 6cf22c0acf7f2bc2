package rollout

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/output"
	"github.com/millwright-dev/millwright/internal/observe/rollout/replacements"
)

// TestReplacements_Print checks the table, and the names.
func TestReplacements_Print(t *testing.T) {
	now := time.Unix(1e9, 0)
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "a-1"}}
	machine.Status.CurrentStatus = v1alpha1.CurrentStatus{Phase: v1alpha1.MachineFailed, LastUpdateTime: metav1.NewTime(now.Add(-5 * time.Minute))}
	all := unhealthyOf([]replacements.Unhealthy{{Machine: machine}}, now)
	var out strings.Builder
	const want = "MACHINE   PHASE    AGE OF PHASE   REPLACED\na-1       Failed   5m             yes, it is Failed\n"
	if err := all.table(now).Print(&out, output.Format{}, "none"); err != nil || out.String() != want {
		t.Errorf("%q, %v, want %q", &out, err, want)
	}
	if names := all.Names(); len(names) != 1 || names[0] != "machine.machine.sapcloud.io/a-1" {
		t.Errorf("names %q", names)
	}
}
