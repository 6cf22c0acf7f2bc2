package machine

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/bootstrap"
	"github.com/millwright-dev/millwright/internal/flow"
	"github.com/millwright-dev/millwright/internal/instance"
	"github.com/millwright-dev/millwright/internal/validation"
)

// lifecycle is the way of a Machine from its declaration to a healthy node.
func (c *Controller) lifecycle() []flow.Step[*scope] {
	return []flow.Step[*scope]{
		{Name: "AddFinalizer", Run: c.addFinalizer},
		{Name: "EnsureInstance", Run: c.ensureInstance},
		{Name: "AwaitNode", Run: c.awaitNode},
		{Name: "FollowNode", Run: c.followNode},
		{Name: "AwaitRegistration", Run: c.awaitRegistration},
		{Name: "AdoptNode", Run: c.adoptNode},
		{Name: "RevokeToken", Run: c.revokeTokenOfJoined},
		{Name: "AssessHealth", Run: c.assessHealth},
	}
}

func (c *Controller) addFinalizer(ctx context.Context, s *scope) flow.Result {
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
		return c.creationImpossible(s, errs.ToAggregate().Error())
	}
	material, missing, err := c.material(ctx, s.machine)
	switch {
	case err != nil:
		return flow.Fail(err)
	case missing == "":
		missing = material.unfit()
	}
	if missing != "" {
		return c.creationImpossible(s, missing)
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
		if err := c.recordIdentity(ctx, s, answer.Instance); err != nil {
			return flow.Fail(err)
		}
		s.instanceExists(c.Target != nil)
		return flow.Continue()
	case instance.Lost:
		s.instanceLost()
		return flow.Wait(0, "the VM is gone")
	case instance.Failed:
		if answer.Instance.ProviderID != "" {
			if err := c.recordIdentity(ctx, s, answer.Instance); err != nil {
				return flow.Fail(err)
			}
		}
		return c.creationFailed(s, answer)
	default:
		return flow.Wait(0, "the driver")
	}
}

// creationImpossible says what is missing. There is nothing to try before it comes.
func (c *Controller) creationImpossible(s *scope, sentence string) flow.Result {
	left := c.creationTimeLeft(s)
	s.notCreated(sentence, left)
	return flow.Wait(max(left, 0), sentence)
}

func (c *Controller) creationFailed(s *scope, answer instance.Answer) flow.Result {
	left := c.creationTimeLeft(s)
	if nameTaken(answer.Failure) && metav1.GetControllerOfNoCopy(s.machine) != nil {
		left = 0 // no patience helps: the set's next machine has another name
	}
	s.driverFailed(answer.Failure, left)
	wait := answer.Retry
	if left > 0 {
		wait = min(wait, left)
	}
	return flow.Wait(wait, answer.Failure.Error())
}

// nameTaken tells whether the driver found somebody else's VM under the Machine's name.
func nameTaken(failure *instance.Failure) bool {
	return failure.Code == codes.AlreadyExists &&
		(failure.Method == instance.MethodCreate || failure.Method == instance.MethodInitialize)
}

// prepare makes the Secret with which an instance is created: user data that carries a
// bootstrap token of the Machine's own.
func (c *Controller) prepare(machine *v1alpha1.Machine, secret *corev1.Secret) func(context.Context) (*corev1.Secret, error) {
	key := types.NamespacedName{Namespace: machine.Namespace, Name: machine.Name}
	valid := c.creationTimeout(machine)
	return func(ctx context.Context) (*corev1.Secret, error) {
		token := ""
		if c.Tokens != nil {
			var err error
			if token, err = c.Tokens.Issue(ctx, key, valid); err != nil {
				return nil, err //nolint:wrapcheck // says whose token it is
			}
		}
		prepared := secret.DeepCopy()
		prepared.Data[bootstrap.UserDataKey] = bootstrap.Render(secret.Data[bootstrap.UserDataKey], key.Name, token)
		return prepared, nil
	}
}

// creationTimeout is the time that the Machine has to join: by its annotation, its spec
// or the flag, in this order.
func (c *Controller) creationTimeout(machine *v1alpha1.Machine) time.Duration {
	if text, ok := machine.Annotations[v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout]; ok {
		if timeout, err := time.ParseDuration(text); err == nil {
			return timeout
		}
	}
	if config := machine.Spec.MachineConfiguration; config != nil && config.MachineCreationTimeout != nil {
		return config.MachineCreationTimeout.Duration
	}
	return c.CreationTimeout
}

// creationTimeLeft is how long the Machine may still take to join; negative if its time
// is over. Time in which no manager worked, or the target could not be seen, does not
// count.
func (c *Controller) creationTimeLeft(s *scope) time.Duration {
	timeout := c.creationTimeout(s.machine)
	start := later(s.machine.CreationTimestamp.Time, c.begun)
	if c.Target != nil {
		if !c.Target.Ready() {
			return timeout
		}
		start = later(start, c.Target.ReadySince())
	}
	return start.Add(timeout).Sub(s.now)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// material is what a driver needs besides the Machine.
type material struct {
	class  *v1alpha1.MachineClass
	secret *corev1.Secret
}

// material finds the Machine's class and the merged data of its Secrets. What is
// missing is no error: it is said in a sentence.
func (c *Controller) material(ctx context.Context, machine *v1alpha1.Machine) (material, string, error) {
	ref := machine.Spec.Class
	if ref.Kind != v1alpha1.MachineClassKind {
		return material{}, fmt.Sprintf("Class kind %q of machine %q is not supported, only %s is", ref.Kind, machine.Name, v1alpha1.MachineClassKind), nil
	}
	class := &v1alpha1.MachineClass{}
	if err := c.Client.Get(ctx, types.NamespacedName{Namespace: machine.Namespace, Name: ref.Name}, class); err != nil {
		if apierrors.IsNotFound(err) {
			return material{}, fmt.Sprintf("MachineClass %q not found in namespace %q", ref.Name, machine.Namespace), nil
		}
		return material{}, "", fmt.Errorf("reading MachineClass %s: %w", ref.Name, err)
	}
	secret, missing, err := c.mergedSecret(ctx, class)
	return material{class: class, secret: secret}, missing, err
}

// held tells whether the class carries our finalizer. Without it the class could vanish
// while an instance is made from it, and nobody could delete that instance again.
func (m material) held() bool {
	return controllerutil.ContainsFinalizer(m.class, v1alpha1.FinalizerMCM)
}

// unfit says why nothing can be created from the material yet; empty if all is well.
func (m material) unfit() string {
	if errs := validation.MachineClass(m.class); len(errs) > 0 {
		return fmt.Sprintf("MachineClass %q is not valid: %v", m.class.Name, errs.ToAggregate())
	}
	if !m.held() && !m.class.DeletionTimestamp.IsZero() {
		return fmt.Sprintf("MachineClass %q is being deleted", m.class.Name)
	}
	if _, ok := m.secret.Data[bootstrap.UserDataKey]; !ok {
		return fmt.Sprintf("No Secret of MachineClass %q has the key %q", m.class.Name, bootstrap.UserDataKey)
	}
	return ""
}
