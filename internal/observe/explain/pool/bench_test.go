package pool

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain"
)

// BenchmarkDeployment_ManyProblems explains a pool of 500 unhealthy machines, with all events about them.
func BenchmarkDeployment_ManyProblems(b *testing.B) {
	f := facts(explain.KindDeployment, func(f *Facts) {
		for i := range 500 {
			machine := member(f.Sets[0], fmt.Sprint("pool-a-9", i))
			machine.Status.CurrentStatus.Phase = v1alpha1.MachinePending
			machine.Status.LastOperation = v1alpha1.LastOperation{State: failed, ErrorCode: "Internal"}
			f.Machines = append(f.Machines, machine)
			for range 6 {
				f.Events = append(f.Events, poolEvent(explain.KindMachine, machine.Name, corev1.EventTypeWarning, "FailedCreate", "no", time.Minute))
			}
		}
	})
	b.ReportAllocs()
	for b.Loop() {
		Explain(f, now)
	}
}
