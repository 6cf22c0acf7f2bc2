package ui

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Conditions are the conditions of an object.
type Conditions struct {
	// Object is "Kind name".
	Object string      `json:"object"`
	States []NodeState `json:"states"`
}

func conditionsOf(object string, conditions []metav1.Condition) Conditions {
	of := Conditions{Object: object}
	for _, condition := range conditions {
		of.States = append(of.States, NodeState{condition.Type, Condition{
			string(condition.Status), condition.Reason, messages.Line(condition.Message), seconds(condition.LastTransitionTime.Time),
		}})
	}
	return of
}

// capiGet reads an object of Cluster API. It returns nil if the object or its kind does not exist.
func (s *view) capiGet(ctx context.Context, kind string, key types.NamespacedName) (*unstructured.Unstructured, error) {
	of, err := ClusterAPIKind(s.options.Control.RESTMapper(), kind)
	if err == nil {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(of)
		if err = s.options.Control.Get(ctx, key, object); err == nil {
			return object, nil
		}
	}
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil, nil
	}
	return nil, fmt.Errorf("cannot read the Cluster API %s %s: %w", kind, key, err)
}

// missing is the detail of an object that does not exist.
func missing(what string, key types.NamespacedName, now time.Time) Detail {
	return Detail{Report: report.Report{Namespace: key.Namespace, At: now, Verdict: report.NotFound, Summary: fmt.Sprintf("%s %s does not exist", what, key.Name)}}
}

// capiMachineDetail describes a Machine of Cluster API by its conditions and those of its MillwrightMachine, with which
// the controllers report what they wait for.
func (s *view) capiMachineDetail(ctx context.Context, key types.NamespacedName) (Detail, error) {
	now := time.Now()
	object, err := s.capiGet(ctx, "Machine", key)
	if err != nil {
		return Detail{}, err
	}
	if object == nil {
		return missing("Machine", key, now), nil
	}
	machine := converted[capiMachine](object)
	detail := Detail{Report: report.Report{Namespace: key.Namespace, Machine: key.Name, At: now}}
	infrastructure := s.capiInfrastructure(ctx, machine, &detail)
	detail.Report.Verdict, detail.Report.Summary = capiVerdict(machine)
	conditions, name := machine.Status.all(), "Machine "+machine.Name
	except := []string{capiReady} // a summary of the others
	if infrastructure != nil {
		except = append(except, capiInfrastructureReady) // a copy of the infrastructure's condition
	}
	detail.Report.Why = append(detail.Report.Why, problems("", conditions, except...)...)
	detail.Conditions = append(detail.Conditions, conditionsOf(name, conditions))
	detail.Life = capiLife(machine, infrastructure)
	detail.Node = s.capiNode(ctx, machine)
	detail.Report.Events = s.capiEvents(ctx, &detail, key.Namespace, key.Name, machine.Spec.InfrastructureRef.Name)
	return detail, nil
}

// capiInfrastructure adds the MillwrightMachine of a machine to its detail, and returns it. It returns nil if it cannot be
// read.
func (s *view) capiInfrastructure(ctx context.Context, machine *capiMachine, detail *Detail) *infrav1.MillwrightMachine {
	key := types.NamespacedName{Namespace: machine.Namespace, Name: machine.Spec.InfrastructureRef.Name}
	if !machine.Spec.InfrastructureRef.isOurs() || key.Name == "" {
		return nil
	}
	infrastructure, name := &infrav1.MillwrightMachine{}, "MillwrightMachine "+key.Name
	if err := s.options.Control.Get(ctx, key, infrastructure); err != nil {
		detail.Report.Unread = append(detail.Report.Unread, name+": "+err.Error())
		return nil
	}
	detail.Infrastructure, detail.Driver = key.Name, infrastructure.Spec.Driver
	detail.Report.Why = problems(name, infrastructure.Status.Conditions, infrav1.ConditionPaused)
	detail.Conditions = append(detail.Conditions, conditionsOf(name, infrastructure.Status.Conditions))
	return infrastructure
}

func capiVerdict(m *capiMachine) (report.Verdict, string) {
	row := capiMachineRowOf(m)
	switch {
	case row.Deleting != 0:
		return report.Deleting, fmt.Sprintf("Machine %s is being deleted", m.Name)
	case row.Phase == "Running":
		return report.Healthy, fmt.Sprintf("Machine %s is Running", m.Name)
	}
	return report.NotRunning, fmt.Sprintf("Machine %s is not Running, but %s", m.Name, row.Phase)
}

// capiLife returns the moments in the life of a machine, the earliest first.
func capiLife(machine *capiMachine, infrastructure *infrav1.MillwrightMachine) []Moment {
	life := []Moment{{"Created", machine.CreationTimestamp.Time}}
	if infrastructure != nil {
		for _, of := range []struct{ condition, what string }{{infrav1.ConditionReady, "VM exists"}, {infrav1.ConditionNodeJoined, "Node joined"}} {
			if condition := meta.FindStatusCondition(infrastructure.Status.Conditions, of.condition); condition != nil && condition.Status == metav1.ConditionTrue {
				life = append(life, Moment{of.what, condition.LastTransitionTime.Time})
			}
		}
	}
	if at := machine.Status.LastUpdated; machine.Status.Phase != "" && !at.IsZero() {
		life = append(life, Moment{machine.Status.Phase, at.Time})
	}
	if at := machine.DeletionTimestamp; at != nil {
		life = append(life, Moment{"Deletion requested", at.Time})
	}
	slices.SortStableFunc(life, func(a, b Moment) int { return a.At.Compare(b.At) })
	return life
}

// capiNode returns the node of a machine; nil if it is not in the target cluster. The provider ID is compared because the
// target cluster is the cluster of the machines by default, and can have another node of the same name.
func (s *view) capiNode(ctx context.Context, machine *capiMachine) *Node {
	name := machine.Status.NodeRef.Name
	if s.options.Target == nil || name == "" {
		return nil
	}
	node := &corev1.Node{}
	if s.options.Target.Get(ctx, types.NamespacedName{Name: name}, node) != nil || node.Spec.ProviderID != machine.Spec.ProviderID {
		return nil
	}
	return nodeOf(node)
}

// capiPoolDetail describes a MachineDeployment of Cluster API by its conditions.
func (s *view) capiPoolDetail(ctx context.Context, key types.NamespacedName) (Detail, error) {
	now := time.Now()
	object, err := s.capiGet(ctx, "MachineDeployment", key)
	if err != nil {
		return Detail{}, err
	}
	if object == nil {
		return missing("MachineDeployment", key, now), nil
	}
	deployment := converted[capiDeployment](object)
	facts := s.model.capiFacts(key.Namespace)
	sets := byCAPIRevision(byController(facts.sets)[deployment.UID])
	row := facts.row(deployment, sets, byController(facts.machines))
	conditions := deployment.Status.all()
	detail := Detail{
		Report: report.Report{
			Namespace: key.Namespace, MachineDeployment: key.Name, At: now, Verdict: report.Incomplete,
			Summary: fmt.Sprintf("%d of %d machines are available, and %d have the latest template", row.Pool.Available, row.Pool.Desired, row.Pool.Updated),
			Why:     problems("", conditions),
		},
		Conditions: []Conditions{conditionsOf("MachineDeployment "+key.Name, conditions)},
	}
	switch {
	case row.Deleting != 0:
		detail.Report.Verdict, detail.Report.Summary = report.Deleting, fmt.Sprintf("MachineDeployment %s is being deleted", key.Name)
	case row.Outcome == rollout.Complete:
		detail.Report.Verdict = report.Healthy
	}
	names := []string{key.Name}
	for i, set := range slices.Backward(sets) {
		detail.Revisions = append(detail.Revisions, Revision{
			Number: capiRevisionOf(set), Set: set.Name, Class: set.Spec.Template.Spec.InfrastructureRef.Name, Created: set.CreationTimestamp.Time, Current: i == len(sets)-1,
		})
		if len(names) <= maxEventSets {
			names = append(names, set.Name)
		}
	}
	detail.Report.Events = s.capiEvents(ctx, &detail, key.Namespace, names...)
	return detail, nil
}

// maxEventSets limits the sets of a deployment whose events are shown.
const maxEventSets = 3

// capiEvents returns the latest events on objects of Cluster API and MillwrightMachines with these names, the latest first.
// They are read from the API server: they are recorded under several API versions, which one watch cannot select.
func (s *view) capiEvents(ctx context.Context, detail *Detail, namespace string, names ...string) []report.Event {
	var found report.Events
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if name == "" {
			continue
		}
		list := &corev1.EventList{}
		if err := s.options.Control.List(ctx, list, client.InNamespace(namespace), client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("involvedObject.name", name)}, client.Limit(maxEvents)); err != nil {
			detail.Report.Unread = append(detail.Report.Unread, "events on "+name+": "+err.Error())
			continue
		}
		for _, event := range list.Items {
			if group := event.InvolvedObject.GroupVersionKind().Group; group == capiGroup || group == infrav1.GroupName {
				found = append(found, event)
			}
		}
	}
	return listed(found)
}
