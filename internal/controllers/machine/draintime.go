package machine

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machine/draintime"
)

const topicForce = "force"

func (c *Controller) drainTimer() draintime.Timer {
	return draintime.Timer{
		Cache: c.Client, Outages: c.outages, Replacements: &c.replacements,
		Timeout: c.Drain.Timeout, OutagePeriod: c.Health.OutagePeriod, MaxForced: c.Health.MaxReplacements,
	}
}

// timeDrain sets when the drain began, and why it is forced.
func (c *Controller) timeDrain(ctx context.Context, s *scope, conditions []corev1.NodeCondition) error {
	if c.Drain.Drainer == nil {
		s.force, s.drainSince = draintime.Asked(s.machine, c.Drain.Timeout), s.machine.DeletionTimestamp.Time
		return nil
	}
	read, err := c.drainTimer().Read(ctx, s.machine, conditions, s.now)
	if err != nil {
		return err
	}
	s.force, s.drainSince = read.Force, read.Since
	s.wakeWithin(read.Wake)
	if read.Delayed != "" {
		s.warnOnce(topicForce, reasonDelayed, read.Delayed, nil)
	}
	if read.Note.IsZero() {
		return nil
	}
	return c.patchMachine(ctx, s, func(machine *v1alpha1.Machine) {
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyDrainSince, read.Note.UTC().Format(time.RFC3339))
	})
}
