package machine

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machine/draintime"
	"github.com/millwright-dev/millwright/internal/controllers/machine/passevents"
)

const topicForce = "force"

// timeDrain sets when the drain of a deletion began, and why it is forced.
func (c *Controller) timeDrain(ctx context.Context, s *scope, conditions []corev1.NodeCondition) error {
	deletion := draintime.OfDeletion(s.machine)
	if c.Drain.Drainer == nil {
		s.force, s.drainSince = deletion.Asked(c.Drain.Timeout), deletion.Begun
		return nil
	}
	read, err := c.drainTimer().Read(ctx, deletion, conditions, s.now)
	if err != nil {
		return err
	}
	s.force, s.drainSince = read.Force, read.Since
	return c.noteReading(ctx, s, read)
}

func (c *Controller) drainTimer() draintime.Timer {
	return draintime.Timer{
		Cache: c.Client, Outages: c.outages, Replacements: &c.replacements,
		Timeout: c.Drain.Timeout, OutagePeriod: c.Health.OutagePeriod, MaxForced: c.Health.MaxReplacements,
	}
}

// noteReading tells of a drain that may not be forced yet, and stores when one began anew.
func (c *Controller) noteReading(ctx context.Context, s *scope, read draintime.Reading) error {
	s.wakeWithin(read.Wake)
	if read.Delayed != "" {
		s.events.WarnOnce(topicForce, passevents.Event{Reason: reasonDelayed, Message: read.Delayed})
	}
	if read.Note.IsZero() {
		return nil
	}
	return c.patchMachine(ctx, s, func(machine *v1alpha1.Machine) {
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyDrainSince, read.Note.UTC().Format(time.RFC3339))
	})
}
