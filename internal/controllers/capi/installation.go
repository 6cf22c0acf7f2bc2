package capi

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// leaveOtherInstallation leaves alone what a manager of another installation has begun: the
// driver would not find that one's VM, make a second one, or say of the first that it is
// gone. Two managers that both wrote would do so in turns, so what the other one has said
// stays; the event is sent once by each process.
func (c *Controller) leaveOtherInstallation(_ context.Context, s *scope) flow.Result {
	theirs, said := s.machine.Annotations[infrav1.AnnotationInstallation]
	if !said || theirs == c.Installation {
		return flow.Continue()
	}
	sentence := fmt.Sprintf("The VM is that of installation %q, and this manager is of installation %q: start it with --installation=%s",
		theirs, c.Installation, theirs)
	news := s.memory.told.News("installation", sentence)
	switch {
	case s.ready() == nil || s.notReadyFor(infrav1.ReasonOtherInstallation):
		s.refuse(infrav1.ReasonOtherInstallation, sentence)
	case news:
		s.explain(corev1.EventTypeWarning, infrav1.ReasonOtherInstallation, sentence)
	}
	return flow.Stop("it is another installation's")
}
