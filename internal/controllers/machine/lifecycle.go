package machine

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/instrument"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
	"github.com/millwright-dev/millwright/internal/reconcile/validation"
)

// lifecycle is the way of a Machine from its declaration to a healthy node.
func (c *Controller) lifecycle() []flow.Step[*scope] {
	return []flow.Step[*scope]{
		{Name: "AddFinalizer", Run: c.addFinalizer},
		{Name: "EnsureInstance", Run: c.ensureInstance},
		{Name: "AwaitNode", Run: c.awaitNode},
		{Name: "FollowNode", Run: c.followNode},
		{Name: "AwaitRegistration", Run: c.awaitRegistration},
		{Name: "SetCapacity", Run: c.setCapacity},
		{Name: "AdoptNode", Run: c.adoptNode},
		{Name: "RevokeToken", Run: c.revokeTokenOfJoined},
		{Name: "AssessHealth", Run: c.assessHealth},
	}
}

func (c *Controller) addFinalizer(ctx context.Context, s *scope) flow.Result {
	if controllerutil.ContainsFinalizer(s.machine, v1alpha1.FinalizerMCM) {
		return flow.Continue()
	}
	return flow.Fail(c.patchMachine(ctx, s, func(machine *v1alpha1.Machine) {
		controllerutil.AddFinalizer(machine, v1alpha1.FinalizerMCM)
	}))
}

// ensureInstance looks for the Machine's instance, and creates it if there never was
// one.
func (c *Controller) ensureInstance(ctx context.Context, s *scope) flow.Result {
	if established(s.machine) {
		return flow.Continue()
	}
	if errs := validation.Machine(s.machine); len(errs) > 0 {
		return c.creationImpossible(ctx, s, errs.ToAggregate().Error())
	}
	material, missing, err := c.material(ctx, s.machine)
	switch {
	case err != nil:
		return flow.Fail(err)
	case missing == "":
		missing = material.unfit()
	}
	if missing == "" {
		missing, err = c.taken(ctx, s.machine, s.machine.Spec.ProviderID)
	}
	if err != nil {
		return flow.Fail(err)
	}
	if missing != "" {
		return c.creationImpossible(ctx, s, missing)
	}
	if !material.held() {
		return flow.Wait(0, "the class to be held by our finalizer")
	}
	answer := c.Engine.Ensure(instance.Request{
		Machine:      s.machine,
		Class:        material.class,
		Secret:       material.secret,
		Prepare:      c.prepare(s.machine, material.secret),
		NodeExpected: c.Target != nil,
	})
	return c.instanceAnswered(ctx, s, answer)
}

func (c *Controller) instanceAnswered(ctx context.Context, s *scope, answer instance.Answer) flow.Result {
	s.note(answer)
	switch answer.State {
	case instance.Exists:
		return c.instanceFound(ctx, s, answer.Instance)
	case instance.Lost:
		s.instanceLost()
		return flow.Wait(0, "the VM is gone")
	case instance.Failed:
		if answer.Instance.ProviderID != "" {
			if ended, result := c.claim(ctx, s, answer.Instance); ended {
				return result
			}
		}
		return c.creationFailed(ctx, s, answer)
	default:
		return c.driverSilent(ctx, s, answer)
	}
}

// instanceFound makes the instance the Machine's.
func (c *Controller) instanceFound(ctx context.Context, s *scope, found instance.Instance) flow.Result {
	if ended, result := c.claim(ctx, s, found); ended {
		return result
	}
	s.instanceExists(c.Target != nil)
	return flow.Continue()
}

// claim records the instance as the Machine's, unless it or its node is another's, and
// reports whether that ends the pass.
func (c *Controller) claim(ctx context.Context, s *scope, found instance.Instance) (bool, flow.Result) {
	if s.machine.Spec.ProviderID == "" {
		sentence, err := c.unclaimable(ctx, s.machine, found)
		switch {
		case err != nil:
			return true, flow.Fail(err)
		case sentence != "":
			s.notCreated(sentence, 0) // no patience helps
			return true, flow.Wait(0, sentence)
		}
	}
	err := c.recordIdentity(ctx, s, found)
	return err != nil, flow.Fail(err)
}

// unclaimable says why a new instance cannot be the Machine's; empty if it can.
func (c *Controller) unclaimable(ctx context.Context, machine *v1alpha1.Machine, found instance.Instance) (string, error) {
	sentence, err := c.taken(ctx, machine, found.ProviderID)
	if err != nil || sentence != "" {
		return sentence, err
	}
	return c.staleNode(ctx, machine, found)
}

// driverSilent waits for the driver to answer. One that never does must not keep a set
// waiting for ever.
func (c *Controller) driverSilent(ctx context.Context, s *scope, answer instance.Answer) flow.Result {
	left := c.creationTimeLeft(ctx, s)
	if !left.over() {
		return flow.Wait(left.wait, "the driver")
	}
	switch s.machine.Status.CurrentStatus.Phase {
	case "":
		s.notCreated(fmt.Sprintf(messages.NoAnswer+" within %s", messages.Duration(c.creationTimeout(s.machine).Duration)), left.left)
	case v1alpha1.MachineCrashLoopBackOff: // it has answered before
		wait := c.silent(answer)
		if wait > 0 {
			return flow.Wait(wait, "the driver")
		}
		s.notCreated(sayNoAnswer, left.left)
	}
	return flow.Wait(0, "the driver")
}

// silence is when a driver counts as one that does not answer: calls have ended by then,
// unless the driver ignores their deadline, and there is nothing to do about that.
const silence = instrument.DefaultTimeout + instrument.DefaultTimeout/2

// silent is when that will be so of the call that is under way; not positive if it is.
func (c *Controller) silent(answer instance.Answer) time.Duration {
	if answer.Since.IsZero() {
		return silence
	}
	return answer.Since.Add(silence).Sub(c.Clock.Now())
}

// creationImpossible says what is missing. There is nothing to try before it comes.
func (c *Controller) creationImpossible(ctx context.Context, s *scope, sentence string) flow.Result {
	left := c.creationTimeLeft(ctx, s)
	s.notCreated(sentence, left.left)
	return flow.Wait(max(left.wait, 0), sentence)
}

func (c *Controller) creationFailed(ctx context.Context, s *scope, answer instance.Answer) flow.Result {
	left := c.creationTimeLeft(ctx, s)
	if nameTaken(answer.Failure) && metav1.GetControllerOfNoCopy(s.machine) != nil {
		left = countdown{} // no patience helps: the set's next machine has another name
	}
	s.driverFailed(answer.Failure, left.left)
	if s.machine.Spec.ProviderID != "" && c.Tokens != nil {
		if err := c.keepToken(ctx, s); err != nil {
			return flow.Fail(err)
		}
	}
	wait := answer.Retry
	if !left.over() {
		wait = min(wait, left.wait)
	}
	return flow.Wait(wait, answer.Failure.Error())
}

// nameTaken reports whether the driver found somebody else's VM under the Machine's name.
func nameTaken(failure *instance.Failure) bool {
	return failure.Code == codes.AlreadyExists &&
		(failure.Method == instance.MethodCreate || failure.Method == instance.MethodInitialize)
}

// prepare makes the Secret with which an instance is created: user data that carries a
// bootstrap token of the Machine's own.
func (c *Controller) prepare(machine *v1alpha1.Machine, secret *corev1.Secret) func(context.Context) (*corev1.Secret, error) {
	key := types.NamespacedName{Namespace: machine.Namespace, Name: machine.Name}
	valid := c.creationTimeout(machine).Duration
	return func(ctx context.Context) (*corev1.Secret, error) {
		token := ""
		if c.Tokens != nil {
			var err error
			if token, err = c.Tokens.Issue(ctx, key, valid); err != nil {
				return nil, err
			}
		}
		prepared := secret.DeepCopy()
		prepared.Data[bootstrap.UserDataKey] = bootstrap.Render(secret.Data[bootstrap.UserDataKey], key.Name, token)
		return prepared, nil
	}
}
