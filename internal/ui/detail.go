package ui

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/pool"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Detail is what the page of a Machine or MachineDeployment shows in addition to its row.
type Detail struct {
	Report report.Report `json:"report"`

	// Life, Node, VM, Operation and Pods describe a Machine.

	// Life are the moments in the life of a Machine, the earliest first.
	Life []Moment `json:"life,omitempty"`
	Node *Node    `json:"node,omitempty"`
	// VM is the namespace and name of the VirtualMachine.
	VM        string     `json:"vm,omitempty"`
	Operation *Operation `json:"operation,omitempty"`
	// Pods are those that must leave the node in a drain.
	Pods []Pod `json:"pods,omitempty"`

	// Revisions are those of a MachineDeployment, the latest first.
	Revisions []Revision `json:"revisions,omitempty"`

	// Conditions are those of an object of Cluster API and of its infrastructure, whose events are in the report.
	Conditions []Conditions `json:"conditions,omitempty"`
	// Infrastructure is the name of the MillwrightMachine of a Machine of Cluster API, and Driver is its driver.
	Infrastructure string `json:"infrastructure,omitempty"`
	Driver         string `json:"driver,omitempty"`
}

// Moment is a time at which a Machine got into a state.
type Moment struct {
	What string    `json:"what"`
	At   time.Time `json:"at"`
}

// Node describes the Node of a Machine.
type Node struct {
	Name       string      `json:"name"`
	Version    string      `json:"version,omitempty"`
	OS         string      `json:"os,omitempty"`
	Cordoned   bool        `json:"cordoned,omitempty"`
	Conditions []NodeState `json:"conditions,omitempty"`
	Taints     []string    `json:"taints,omitempty"`
}

// NodeState is a condition of a Node.
type NodeState struct {
	Type string `json:"type"`
	Condition
}

// Operation is the last operation of a Machine, with the message of its driver.
type Operation struct {
	Type  string    `json:"type"`
	State string    `json:"state"`
	Code  string    `json:"code,omitempty"`
	Text  string    `json:"text"`
	At    time.Time `json:"at,omitzero"`
}

// Pod is a Pod that delays a drain.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Terminating is when its deletion was requested.
	Terminating time.Time `json:"terminating,omitzero"`
	// Budgets are the PodDisruptionBudgets that select it.
	Budgets []Budget `json:"budgets,omitempty"`
}

// Budget is a PodDisruptionBudget.
type Budget struct {
	Name string `json:"name"`
	// Allowed is how many Pods may be evicted now.
	Allowed int32 `json:"allowed"`
	Healthy int32 `json:"healthy"`
	Desired int32 `json:"desired"`
}

// Revision is a MachineSet of a MachineDeployment.
type Revision struct {
	Number  int64     `json:"number"`
	Set     string    `json:"set"`
	Class   string    `json:"class"`
	Created time.Time `json:"created"`
	Cause   string    `json:"cause,omitempty"`
	Current bool      `json:"current,omitempty"`
}

// machineDetail explains a Machine.
func (s *view) machineDetail(ctx context.Context, key types.NamespacedName) (Detail, error) {
	facts, err := s.gather().Machine(ctx, key)
	if err != nil {
		return Detail{}, err
	}
	detail := Detail{Report: explain.Machine(facts, time.Now())}
	if facts.VM != nil {
		detail.VM = facts.VM.Namespace + "/" + facts.VM.Name
	}
	if facts.Machine != nil {
		detail.Life, detail.Operation = lifeOf(facts), operationOf(facts.Machine)
	}
	if node := facts.Target.Node; node != nil {
		detail.Node = nodeOf(node)
	}
	detail.Pods = podsOf(facts.Target)
	return detail, nil
}

func lifeOf(facts explain.MachineFacts) []Moment {
	m, node := facts.Machine, facts.Target.Node
	life := []Moment{{"Created", m.CreationTimestamp.Time}}
	add := func(what string, at time.Time) {
		if !at.IsZero() {
			life = append(life, Moment{what, at})
		}
	}
	if node != nil && !facts.Target.Copied {
		add("Node joined", node.CreationTimestamp.Time)
	}
	status := m.Status.CurrentStatus
	switch status.Phase {
	case v1alpha1.MachineRunning, v1alpha1.MachineAvailable, v1alpha1.MachineFailed, v1alpha1.MachineUnknown, v1alpha1.MachinePending, v1alpha1.MachineCrashLoopBackOff:
		add(string(status.Phase), status.LastUpdateTime.Time)
	}
	if m.DeletionTimestamp != nil {
		add("Deletion requested", m.DeletionTimestamp.Time)
	}
	for i := range facts.Events {
		event := &facts.Events[i]
		if report.On(event, m.Name, m.UID) && event.InvolvedObject.Kind == explain.KindMachine && event.Annotations[v1alpha1.EventAnnotationStep] != "" {
			add(event.Annotations[v1alpha1.EventAnnotationStep], report.Time(event))
		}
	}
	slices.SortStableFunc(life, func(a, b Moment) int { return a.At.Compare(b.At) })
	return life
}

func operationOf(m *v1alpha1.Machine) *Operation {
	operation := m.Status.LastOperation
	if operation.Type == "" && operation.Description == "" {
		return nil
	}
	return &Operation{string(operation.Type), string(operation.State), operation.ErrorCode, messages.Line(operation.Description), operation.LastUpdateTime.Time}
}

func nodeOf(from *corev1.Node) *Node {
	node := &Node{Name: from.Name, Version: from.Status.NodeInfo.KubeletVersion, OS: from.Status.NodeInfo.OSImage, Cordoned: from.Spec.Unschedulable}
	for _, condition := range from.Status.Conditions {
		node.Conditions = append(node.Conditions, NodeState{string(condition.Type), Condition{
			string(condition.Status), condition.Reason, messages.Line(condition.Message), seconds(condition.LastTransitionTime.Time),
		}})
	}
	for _, taint := range from.Spec.Taints {
		node.Taints = append(node.Taints, taint.ToString())
	}
	return node
}

// podsOf returns the Pods that a drain evicts.
func podsOf(target explain.Target) []Pod {
	var pods []Pod
	for i := range target.Pods {
		from := &target.Pods[i]
		if !drain.MustLeave(from) {
			continue
		}
		pod := Pod{Namespace: from.Namespace, Name: from.Name}
		if from.DeletionTimestamp != nil {
			pod.Terminating = from.DeletionTimestamp.Time
		}
		for _, budget := range drain.Covering(from.Labels, target.Budgets) {
			if budget.Namespace == from.Namespace {
				pod.Budgets = append(pod.Budgets, Budget{budget.Name, budget.Status.DisruptionsAllowed, budget.Status.CurrentHealthy, budget.Status.DesiredHealthy})
			}
		}
		pods = append(pods, pod)
	}
	return pods
}

// poolDetail explains a MachineDeployment.
func (s *view) poolDetail(ctx context.Context, key types.NamespacedName) (Detail, error) {
	facts, err := s.gather().Deployment(ctx, key)
	if err != nil {
		return Detail{}, err
	}
	detail := Detail{Report: pool.Explain(facts, time.Now())}
	if facts.Deployment == nil {
		return detail, nil
	}
	current := facts.Current()
	for _, set := range slices.Backward(rollout.Revisions(rollout.Facts{Facts: facts})) {
		detail.Revisions = append(detail.Revisions, Revision{
			Number: revision.Number(set), Set: set.Name, Class: set.Spec.Template.Spec.Class.Name, Created: set.CreationTimestamp.Time,
			Cause: messages.Line(set.Annotations["kubernetes.io/change-cause"]), Current: set == current,
		})
	}
	return detail, nil
}

// maxEvents limits the events of the time line.
const maxEvents = 500

// events returns the latest events of a namespace, the latest first: on one Machine, on a pool with its sets and
// Machines, or on all.
func (s *view) events(namespace, poolName, machine string) []report.Event {
	var found report.Events
	belongs := s.belongs(namespace, poolName, machine)
	for _, event := range objectsOf[*corev1.Event](s.model.sources["Event"], namespace) {
		if belongs(event) {
			found = append(found, *event)
		}
	}
	return listed(found)
}

// listed returns the latest events, the latest first.
func listed(found report.Events) []report.Event {
	found.Sort()
	found = found[max(0, len(found)-maxEvents):]
	listed := make([]report.Event, 0, len(found))
	for i := range slices.Backward(found) {
		listed = append(listed, report.EventOf(&found[i]))
	}
	return listed
}

func (s *view) belongs(namespace, poolName, machine string) func(*corev1.Event) bool {
	if machine != "" {
		return func(event *corev1.Event) bool {
			return event.InvolvedObject.Kind == explain.KindMachine && event.InvolvedObject.Name == machine || report.Names(event, machine)
		}
	}
	if poolName == "" {
		return func(*corev1.Event) bool { return true }
	}
	sets := map[string]bool{}
	for _, set := range objectsOf[*v1alpha1.MachineSet](s.model.sources["MachineSet"], namespace) {
		if controllerName(set, explain.KindDeployment) == poolName {
			sets[set.Name] = true
		}
	}
	return func(event *corev1.Event) bool {
		switch about := event.InvolvedObject; about.Kind {
		case explain.KindDeployment:
			return about.Name == poolName
		case explain.KindSet:
			return sets[about.Name]
		default: // a Machine, which may no longer exist, so its set is known only from its name
			at := strings.LastIndexByte(about.Name, '-')
			return at > 0 && sets[about.Name[:at]]
		}
	}
}

// yamlOf returns an object of one of the kinds that the page shows. Secrets are not among them.
func (s *view) yamlOf(ctx context.Context, kind string, key types.NamespacedName) (string, error) {
	var object client.Object
	switch kind {
	case capiMachineRow:
		return s.capiYAML(ctx, "Machine", key)
	case capiPoolRow:
		return s.capiYAML(ctx, "MachineDeployment", key)
	case "machine":
		object = &v1alpha1.Machine{}
	case "pool":
		object = &v1alpha1.MachineDeployment{}
	case "vm":
		object = &vmv1alpha1.VirtualMachine{}
	case "host":
		object = &corev1.Node{}
	default:
		return "", fmt.Errorf("unknown kind %q; use machine, pool, capi-machine, capi-pool, vm or host", kind)
	}
	if err := s.options.Control.Get(ctx, key, object); err != nil {
		return "", err
	}
	gvk, err := s.options.Control.GroupVersionKindFor(object)
	if err != nil {
		return "", err
	}
	object.GetObjectKind().SetGroupVersionKind(gvk)
	return textOfObject(object)
}

func (s *view) capiYAML(ctx context.Context, kind string, key types.NamespacedName) (string, error) {
	object, err := s.capiGet(ctx, kind, key)
	if err != nil {
		return "", err
	}
	if object == nil {
		return "", apierrors.NewNotFound(schema.GroupResource{Group: capiGroup, Resource: kind}, key.Name)
	}
	return textOfObject(object)
}

func textOfObject(object client.Object) (string, error) {
	object.SetManagedFields(nil)
	text, err := yaml.Marshal(object)
	return string(text), err
}
