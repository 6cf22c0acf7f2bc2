package crash

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

const (
	// shortPreservation is how long a Machine is preserved if the preservation expires. Times have a resolution
	// of one second.
	shortPreservation = 2 * time.Second
	// shortHealthTimeout is how long a node may be unhealthy in scenarios with Failed Machines.
	shortHealthTimeout = 500 * time.Millisecond
)

// preservations contains the scenarios in which a Machine, r.named, is preserved.
var preservations = []scenario{
	{
		name:   "preserved until it expires",
		given:  givenOneToPreserve(preservedFor(shortPreservation)),
		act:    inTurn(requested("now"), awaitThat("a preservation", preserved)),
		want:   released(sameMachine),
		always: both(both(most(1), least(1)), keepPreserved),
	},
	{
		name:          "preserved when it fails, then released",
		healthTimeout: shortHealthTimeout,
		given:         givenOneToPreserve(),
		act:           inTurn(requested("when-failed"), failNode, awaitThat("a preservation", preserved), requested("false")),
		want:          released(otherMachine),
		always:        both(most(2), keepPreserved), // it is deleted, and replaced by its successor
	},
	{
		name:   "preserved by its node, then deletion",
		given:  givenOneToPreserve(),
		act:    inTurn(annotateNode("now"), awaitThat("a preservation", preserved), removeAll),
		want:   nothing,
		always: most(1),
	},
}

// preservedFor sets the preservation timeout of Machines.
func preservedFor(timeout time.Duration) deploymentOption {
	return func(deployment *v1alpha1.MachineDeployment) {
		deployment.Spec.Template.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{MachinePreserveTimeout: &metav1.Duration{Duration: timeout}}
	}
}

// givenOneToPreserve creates a running Machine that can be preserved.
func givenOneToPreserve(options ...deploymentOption) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		if err := givenDeployment(1, options...)(ctx, r); err != nil {
			return err
		}
		machines := &v1alpha1.MachineList{}
		if err := r.list(ctx, machines); err != nil {
			return err
		}
		r.named = machines.Items[0].Name
		return nil
	}
}

// requested requests the preservation of the Machine, or the end of it.
func requested(value string) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: r.control.Namespace, Name: r.named}}
		return r.merge(ctx, machine, preserveAnnotation(strconv.Quote(value)))
	}
}

// annotateNode sets the annotation of preservation on the node of the Machine.
func annotateNode(value string) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		return r.mergeNode(ctx, r.named, preserveAnnotation(strconv.Quote(value)))
	}
}

func (r *run) mergeNode(ctx context.Context, name, patch string) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	return r.target.Client.Patch(ctx, node, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// preserveAnnotation returns a patch that sets the annotation to a JSON value.
func preserveAnnotation(value string) string {
	return fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, v1alpha1.AnnotationKeyPreserve, value)
}

// failNode makes the node of the Machine fail.
func failNode(_ context.Context, r *run) error {
	_, err := r.cloud.SetNodeReady(r.named, corev1.ConditionFalse)
	return err
}

// preserved checks that the Machine is preserved, and that its node reports that. A preservation that expires may
// already be over.
func preserved(ctx context.Context, r *run) error {
	node := &corev1.Node{}
	if err := r.target.Client.Get(ctx, client.ObjectKey{Name: r.named}, node); err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == v1alpha1.NodePreserved && (condition.Status == corev1.ConditionTrue || condition.Reason == v1alpha1.PreservationStopped) {
			return nil
		}
	}
	return errors.New("its node does not report that")
}

// Whether the preserved Machine still exists in the end.
const (
	sameMachine  = true
	otherMachine = false
)

// released checks that one Machine runs without a trace of a preservation, either the same as before or another.
func released(same bool) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		machines := &v1alpha1.MachineList{}
		if err := r.list(ctx, machines); err != nil {
			return err
		}
		for i := range machines.Items {
			machine := &machines.Items[i]
			if same != (machine.Name == r.named) {
				return fmt.Errorf("machine %s exists, and %s was preserved", machine.Name, r.named)
			}
			if err := r.unmarked(ctx, machine); err != nil {
				return fmt.Errorf("machine %s: %w", machine.Name, err)
			}
		}
		return running(1)(ctx, r)
	}
}

// unmarked checks that neither a Machine nor its node is marked as preserved.
func (r *run) unmarked(ctx context.Context, machine *v1alpha1.Machine) error {
	if requested := machine.Annotations[v1alpha1.AnnotationKeyPreserve]; requested != "" || machine.Status.CurrentStatus.PreserveExpiryTime != nil {
		return fmt.Errorf("is preserved until %v (%q)", machine.Status.CurrentStatus.PreserveExpiryTime, requested)
	}
	node := &corev1.Node{}
	if err := r.target.Client.Get(ctx, client.ObjectKey{Name: machine.Name}, node); err != nil {
		return err
	}
	for _, key := range []string{v1alpha1.AnnotationKeyPreserve, v1alpha1.AnnotationKeyScaleDownDisabled, v1alpha1.AnnotationKeyScaleDownDisabledByMCM} {
		if value, left := node.Annotations[key]; left {
			return fmt.Errorf("its node has the annotation %s=%s", key, value)
		}
	}
	for _, taint := range node.Spec.Taints {
		if taint.Key == v1alpha1.TaintKeyPreserved {
			return errors.New("its node has the taint of a preserved one")
		}
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == v1alpha1.NodePreserved && condition.Reason != v1alpha1.PreservationStopped {
			return fmt.Errorf("its node reports %q", condition.Reason)
		}
	}
	return nil
}

// keepPreserved requires that no Machine is deleted before its preservation expires.
func keepPreserved(_ *run, was, is moment) error {
	for name, before := range was.machines {
		expiry := before.Status.CurrentStatus.PreserveExpiryTime
		machine, exists := is.machines[name]
		if expiry == nil || !before.DeletionTimestamp.IsZero() || exists && machine.DeletionTimestamp.IsZero() {
			continue
		}
		if !exists || machine.DeletionTimestamp.Before(expiry) {
			return fmt.Errorf("%w: %s, until %v", errPreserved, name, expiry)
		}
	}
	return nil
}
