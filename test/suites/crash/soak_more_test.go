package crash

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/serverfault"
)

// What operators and others do in addition to scaling and rolling out.
var moreSoakOperations = []soakOperation{
	{"roll back", (*soak).rollBack},
	{"edit a class", (*soak).editClass},
	{"change the Secret", (*soak).changeSecret},
	{"delete a Machine by force", (*soak).deleteByForce},
	{"name a Machine for deletion, and delete it", (*soak).nameAndDelete},
	{"preserve a Machine, or not", (*soak).preserve},
	{"preserve a Machine, or not", (*soak).preserve},
	{"create a Pod", (*soak).addPod},
	{"create a Pod", (*soak).addPod},
	{"the budget of the pods changes", (*soak).budgetPods},
	{"both API servers are unavailable", (*soak).takeServersAway},
}

// soakLabels are the labels of the Pods.
var soakLabels = map[string]string{"app": "soak"}

// givenBudget creates a disruption budget for future Pods.
func givenBudget(ctx context.Context, r *run) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "budget"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: soakLabels},
		},
	}
	return r.createIn(ctx, r.target, account, budget)
}

// allow sets how many of the Pods may be evicted.
func (s *soak) allow(ctx context.Context, r *run, disruptions int32) error {
	key := client.ObjectKey{Namespace: r.target.Namespace, Name: "budget"}
	var err error
	for range conflicts { // an eviction changes the status, too
		budget := &policyv1.PodDisruptionBudget{}
		if err = r.target.Client.Get(ctx, key, budget); err != nil {
			return err
		}
		err = r.count(ctx, budget, policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: disruptions, CurrentHealthy: disruptions, ExpectedPods: disruptions})
		if !apierrors.IsConflict(err) {
			return err
		}
	}
	return err
}

// conflicts is the maximum number of consecutive conflicts.
const conflicts = 10

func (s *soak) budgetPods(ctx context.Context, r *run) error {
	return s.allow(ctx, r, s.random.Int32N(3))
}

// addPod creates a Pod on the node of a running Machine.
func (s *soak) addPod(ctx context.Context, r *run) error {
	machine, err := s.anyMachine(ctx, r)
	if err != nil || machine == nil || machine.Status.CurrentStatus.Phase != v1alpha1.MachineRunning || !machine.DeletionTimestamp.IsZero() {
		return err
	}
	name := fmt.Sprintf("pod-%d", len(s.pods))
	s.pods[name] = machine.Name
	pod := podOn(machine.Name, name, soakLabels)
	if err := r.createIn(ctx, r.target, pod); err != nil {
		return err
	}
	return client.IgnoreNotFound(r.makeReady(ctx, pod)) // its node may be drained meanwhile
}

// collectPods deletes the Pods of nodes that no longer exist, like the garbage collector of Pods.
func (s *soak) collectPods(ctx context.Context, r *run) error {
	pods := &corev1.PodList{}
	if err := r.target.Client.List(ctx, pods, client.InNamespace(r.target.Namespace)); err != nil {
		return err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		err := r.target.Client.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, &corev1.Node{})
		if apierrors.IsNotFound(err) {
			err = client.IgnoreNotFound(r.target.Client.Delete(ctx, pod, client.GracePeriodSeconds(0)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mayDelete reports whether a Pod may be deleted instead of evicted: only if its Machine is deleted by force.
func (s *soak) mayDelete(pod string) bool { return s.forced[s.pods[pod]] }

func (s *soak) rollBack(ctx context.Context, r *run) error {
	return r.patchDeployment(ctx, `{"spec":{"rollbackTo":{}}}`)
}

// rolledBack waits for the end of a rollback, and reads the resulting desired state.
func (s *soak) rolledBack(ctx context.Context, r *run) error {
	return r.await(ctx, "the end of a roll-back", func(ctx context.Context, r *run) error {
		deployment, err := r.deployment(ctx)
		if err != nil {
			return err
		}
		if deployment.Spec.RollbackTo != nil {
			return fmt.Errorf("the rollback request %v is still there", deployment.Spec.RollbackTo)
		}
		s.class = deployment.Spec.Template.Spec.Class.Name
		return nil
	})
}

// editClass changes the pool and the tags of VMs, or reverts that. Existing VMs are kept.
func (s *soak) editClass(ctx context.Context, r *run) error {
	class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: r.control.Namespace, Name: []string{pool, newClass}[s.random.IntN(2)]}}
	spec := []string{`{"pool":"other","tags":{"edited":"yes"}}`, `{"pool":null,"tags":null}`}
	return r.merge(ctx, class, fmt.Sprintf(`{"providerSpec":%s}`, spec[s.random.IntN(len(spec))]))
}

// changeSecret changes the user data, and adds or removes the name of the account. VMs created in another account
// would be unreachable after the next change.
func (s *soak) changeSecret(ctx context.Context, r *run) error {
	s.secrets++
	value := fmt.Sprintf("%s-%d", userDataSecret, s.secrets)
	r.leaks.secret([]byte(value))
	account := []string{`""`, fmt.Sprintf("%q", firstAccount)}[s.random.IntN(2)]
	return r.merge(ctx, &corev1.Secret{ObjectMeta: r.poolMeta()},
		fmt.Sprintf(`{"stringData":{"account":%s,"userData":"%s <<BOOTSTRAP_TOKEN>>"}}`, account, value))
}

func (s *soak) deleteByForce(ctx context.Context, r *run) error {
	machine, err := s.anyMachine(ctx, r)
	if err != nil || machine == nil {
		return err
	}
	s.forced[machine.Name] = true
	err = r.merge(ctx, machine, fmt.Sprintf(`{"metadata":{"labels":{%q:"True"}}}`, v1alpha1.LabelKeyForceDeletion))
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	return s.remove(ctx, r, machine)
}

// remove deletes a Machine, which may be preserved.
func (s *soak) remove(ctx context.Context, r *run, machine *v1alpha1.Machine) error {
	s.removed[machine.Name] = true
	return client.IgnoreNotFound(r.control.Client.Delete(ctx, machine))
}

func (s *soak) nameAndDelete(ctx context.Context, r *run) error {
	named := r.named
	if err := s.nameMachine(ctx, r); err != nil || r.named == named {
		return err
	}
	return s.remove(ctx, r, &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: r.control.Namespace, Name: r.named}})
}

// preserve starts or stops the preservation of a Machine, through the Machine or its node.
func (s *soak) preserve(ctx context.Context, r *run) error {
	machine, err := s.anyMachine(ctx, r)
	if err != nil || machine == nil {
		return err
	}
	s.held[machine.Name] = true
	values := []string{`"now"`, `"when-failed"`, `"false"`, `null`}
	patch := preserveAnnotation(values[s.random.IntN(len(values))])
	if s.random.IntN(3) == 0 {
		return client.IgnoreNotFound(r.mergeNode(ctx, machine.Name, patch))
	}
	return client.IgnoreNotFound(r.merge(ctx, machine, patch))
}

// release stops all preservations.
func (s *soak) release(ctx context.Context, r *run) error {
	machines := &v1alpha1.MachineList{}
	if err := r.list(ctx, machines); err != nil {
		return err
	}
	patch := preserveAnnotation("null")
	for i := range machines.Items {
		if err := client.IgnoreNotFound(r.merge(ctx, &machines.Items[i], patch)); err != nil {
			return err
		}
	}
	return client.IgnoreNotFound(r.eachNode(ctx, func(node *corev1.Node) error {
		return client.IgnoreNotFound(r.mergeNode(ctx, node.Name, patch))
	}))
}

// keepPreserved is like the rule of that name, except for Machines that the soak deletes.
func (s *soak) keepPreserved(r *run, was, is moment) error {
	kept := moment{machines: map[string]*v1alpha1.Machine{}}
	for name, machine := range was.machines {
		if !s.removed[name] {
			kept.machines[name] = machine
		}
	}
	return keepPreserved(r, kept, is)
}

// calm is how long the API servers stay reachable after an outage. client-go's caches double their back-off after
// each failure, up to a minute, and reset it after two minutes.
const calm = 2 * time.Minute

// takeServersAway makes both API servers unreachable until the next fault.
func (s *soak) takeServersAway(_ context.Context, r *run) error {
	if time.Since(s.awaySince) < calm {
		return nil
	}
	s.awaySince = time.Now()
	for _, server := range []*apiserver{r.servers.control, r.servers.target} {
		server.fault.Store(&serverfault.Fault{Name: "is unavailable", Every: 1, Concerns: serverfault.AnyRequest, Respond: badGateway})
	}
	r.hangUp()
	return nil
}

// marksNameMachines checks that only Machines that exist are marked for deletion.
func (r *run) marksNameMachines(ctx context.Context) error {
	deployment, err := r.deployment(ctx)
	if err != nil {
		return err
	}
	for requested := range strings.SplitSeq(deployment.Annotations[v1alpha1.AnnotationKeyTriggerDeletion], ",") {
		name, _, _ := strings.Cut(requested, "~")
		err := r.control.Client.Get(ctx, client.ObjectKey{Namespace: r.control.Namespace, Name: name}, &v1alpha1.Machine{})
		if name != "" && apierrors.IsNotFound(err) {
			return fmt.Errorf("%s is named for deletion, and does not exist", name)
		}
	}
	return nil
}
