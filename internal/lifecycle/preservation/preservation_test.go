package preservation

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

func TestActive(t *testing.T) {
	const ofNode = last
	for reason, test := range map[string]struct {
		annotations map[string]string
		phase       v1alpha1.MachinePhase
		expiry      *metav1.Time
		want        bool
	}{
		"not requested":            {phase: v1alpha1.MachineFailed},
		"now, running":             {annotations: map[string]string{own: Now}, phase: v1alpha1.MachineRunning, want: true},
		"now on the node, running": {annotations: map[string]string{ofNode: Now}, phase: v1alpha1.MachineRunning, want: true},
		"when failed, running":     {annotations: map[string]string{own: WhenFailed}, phase: v1alpha1.MachineRunning},
		"when failed, unknown":     {annotations: map[string]string{own: WhenFailed}, phase: v1alpha1.MachineUnknown},
		"when failed, failed":      {annotations: map[string]string{own: WhenFailed}, phase: v1alpha1.MachineFailed, want: true},
		"auto, failed":             {annotations: map[string]string{own: AutoPreserved}, phase: v1alpha1.MachineFailed, want: true},
		"auto, recovered":          {annotations: map[string]string{own: AutoPreserved}, phase: v1alpha1.MachineRunning},
		"refused":                  {annotations: map[string]string{own: "false"}, phase: v1alpha1.MachineFailed},
		"nonsense":                 {annotations: map[string]string{own: "please"}, phase: v1alpha1.MachineFailed},
		"the node's value precedes the machine's": {annotations: map[string]string{ofNode: "false", own: Now}, phase: v1alpha1.MachineFailed},
		"a future expiry, failed":                 {phase: v1alpha1.MachineFailed, expiry: at(time.Second), want: true},
		"a future expiry, running":                {phase: v1alpha1.MachineRunning, expiry: at(time.Second), want: true},
		"at its expiry":                           {phase: v1alpha1.MachineFailed, expiry: at(0)},
		"now, after its expiry":                   {annotations: map[string]string{own: Now}, phase: v1alpha1.MachineFailed, expiry: at(-time.Hour)},
	} {
		t.Run(reason, func(t *testing.T) {
			machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Annotations: test.annotations}}
			machine.Status.CurrentStatus = v1alpha1.CurrentStatus{Phase: test.phase, PreserveExpiryTime: test.expiry}
			if got := Active(machine, noon); got != test.want {
				t.Errorf("preserved: %t, want %t", got, test.want)
			}
		})
	}
}
