package machinedeployment

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/test/fixture"
)

// TestARolloutIsLookedAtWhenItsDeadlineIsOver, though nothing happens until then.
func TestARolloutIsLookedAtWhenItsDeadlineIsOver(t *testing.T) {
	s := newServer(fixture.Deployment(3, fixture.OfClass("b"), func(d *v1alpha1.MachineDeployment) { d.Spec.ProgressDeadlineSeconds = ptr.To[int32](600) }), fixture.Set("a", 3))
	s.Target = nil
	if again := s.pass(t).RequeueAfter; again < 600*time.Second || again > 602*time.Second {
		t.Errorf("it is looked at again after %s", again)
	}
}

// TestOnesThatWereMarkedAreNotMarkedTwice: the pass ends if only some could not be.
func TestOnesThatWereMarkedAreNotMarkedTwice(t *testing.T) {
	s, refused := scaledByName(t, "m-1~"+fixture.Later+",m-2~"+fixture.Later), "m-1"
	s.refusedMachine(&refused)
	s.pass(t)
	if n := len(slices.DeleteFunc(slices.Clone(s.writes), func(write string) bool { return write != "patch m-2" })); n != 1 {
		t.Errorf("writes %q", s.writes)
	}
}

// TestAMachineThatChangesWhileItIsMarkedIsNoRefusal: it is tried again, and nobody is told.
func TestAMachineThatChangesWhileItIsMarkedIsNoRefusal(t *testing.T) {
	s := scaledByName(t, "m-1~"+fixture.Later)
	s.refuse = func(verb string, object client.Object) error {
		if verb == "patch" && object.GetName() == "m-1" {
			return apierrors.NewConflict(v1alpha1.SchemeGroupVersion.WithResource("machines").GroupResource(), "m-1", errors.New("it was changed"))
		}
		return nil
	}
	if again := s.pass(t).RequeueAfter; again != expectations.StaleCache {
		t.Errorf("it is looked at again after %s", again)
	}
	if at := conditionAt(s.deployment().Status, v1alpha1.MachineDeploymentReplicaFailure); at >= 0 || strings.Contains(strings.Join(s.lines, "\n"), v1alpha1.DeploymentReasonMarkError) {
		t.Errorf("events %q, status %+v", s.lines, s.deployment().Status)
	}
}
