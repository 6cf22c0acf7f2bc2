package migration

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

func copyingFrom(source, target string) *v1alpha1.VirtualMachineStatus {
	status := &v1alpha1.VirtualMachineStatus{Migration: &v1alpha1.VirtualMachineMigration{
		Phase: v1alpha1.MigrationCopying, SourcePodName: source, TargetPodName: target, TargetPodUID: "1",
	}}
	status.ActivePodName = source
	return status
}

// TestProgress_RecordsConvergence checks that the status has the worst convergence of the current attempt.
func TestProgress_RecordsConvergence(t *testing.T) {
	const (
		converges = vmpb.ReportStateRequest_Migration_CONVERGENCE_UNKNOWN
		fails     = vmpb.ReportStateRequest_Migration_CONVERGENCE_FAILING
		forced    = vmpb.ReportStateRequest_Migration_CONVERGENCE_FORCED
	)
	for name, test := range map[string]struct {
		reported []vmpb.ReportStateRequest_Migration_Convergence
		target   string
		want     v1alpha1.MigrationConvergence
		message  string
	}{
		"converges":           {reported: []vmpb.ReportStateRequest_Migration_Convergence{converges}, target: "t", message: "Migrating to pod t."},
		"does not converge":   {reported: []vmpb.ReportStateRequest_Migration_Convergence{converges, fails}, target: "t", want: v1alpha1.MigrationNotConverging, message: "completionTimeoutPolicy"},
		"forced":              {reported: []vmpb.ReportStateRequest_Migration_Convergence{fails, forced}, target: "t", want: v1alpha1.MigrationForced, message: "will be stopped"},
		"forced, out of turn": {reported: []vmpb.ReportStateRequest_Migration_Convergence{forced, fails, converges}, target: "t", want: v1alpha1.MigrationForced, message: "will be stopped"},
		"of another attempt":  {reported: []vmpb.ReportStateRequest_Migration_Convergence{fails}, target: "t0", message: "Migrating to pod t."},
		"of a later version":  {reported: []vmpb.ReportStateRequest_Migration_Convergence{99}, target: "t", message: "Migrating to pod t."},
	} {
		t.Run(name, func(t *testing.T) {
			status := copyingFrom("s", "t")
			for _, convergence := range test.reported {
				Progress(status, &vmpb.ReportStateRequest{Us: &vmpb.HypervisorID{PodName: "s"}, Migration: &vmpb.ReportStateRequest_Migration{
					Phase: vmpb.ReportStateRequest_Migration_PHASE_COPYING, TargetPod: test.target, Convergence: convergence,
				}}, nil, time.Now())
			}
			if got := status.Migration.Convergence; got != test.want {
				t.Errorf("convergence %q, want %q", got, test.want)
			}
			condition := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionMigrating)
			if condition.Reason != string(v1alpha1.MigrationCopying) || !strings.Contains(condition.Message, test.message) {
				t.Errorf("condition %+v, want a message with %q", condition, test.message)
			}
		})
	}
}

// TestNext_TimedOutIsFinal checks that a migration that did not complete within its timeout is not retried.
func TestNext_TimedOutIsFinal(t *testing.T) {
	source, target := &corev1.Pod{}, &corev1.Pod{}
	source.Name, target.Name, target.UID = "s", "t", "1"
	for name, test := range map[string]struct {
		report *vmpb.ReportStateRequest_Migration
		want   string
		final  bool
	}{
		"timed out":         {&vmpb.ReportStateRequest_Migration{TimedOut: true, TargetPod: "t", Message: "why"}, ReasonTimedOut, true},
		"failed":            {&vmpb.ReportStateRequest_Migration{TargetPod: "t", Message: "why"}, ReasonCopyFailed, false},
		"the last one, too": {&vmpb.ReportStateRequest_Migration{TimedOut: true, TargetPod: "t0"}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			status := copyingFrom("s", "t")
			test.report.Phase = vmpb.ReportStateRequest_Migration_PHASE_FAILED
			got := Next(Facts{Status: status, Source: source, Target: target, Claims: true, Report: test.report, Incoming: true, Ordered: true, Now: time.Now()})
			if got.Failure != test.want || !strings.HasPrefix(got.Message, test.report.GetMessage()) {
				t.Errorf("decision %+v, want %q", got, test.want)
			}
			if final := Final(status.Migration, got.Failure); final != test.final {
				t.Errorf("final %t, want %t", final, test.final)
			}
			if advised := strings.Contains(got.Message, "spec.migration"); advised != (test.want == ReasonTimedOut) {
				t.Errorf("message %q", got.Message)
			}
		})
	}
}
