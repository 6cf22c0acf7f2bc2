// Package upstream plays either process of MCM in tests, as recordings show it: each writes only what
// MCM was seen to write, in MCM's order, one step in a pass, whole objects under an optimistic lock. What it
// writes by MCM's description alone is in described.txt.
//
// Not played are bootstrap tokens, drains of nodes that have pods, and updates in place that fail.
package upstream

import (
	"context"
	_ "embed"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

//go:embed writes.txt
var recorded string

//go:embed described.txt
var described string

// Recorded are the writes recorded of MCM, in the format of writes.txt.
func Recorded() map[string]bool { return parse(recorded) }

// Described are the writes that are known from MCM's documentation only.
func Described() map[string]bool { return parse(described) }

func parse(text string) map[string]bool {
	writes := map[string]bool{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "#") {
			writes[line] = true
		}
	}
	return writes
}

// Process is one of the two MCM processes.
type Process struct {
	client    client.Client
	namespace string
	name      string
	// pass performs one step for each object.
	pass func(ctx context.Context, objects *objects) error
	// made contains the writes, as writes.txt describes them.
	made map[string]bool
	// writes counts the writes of a pass.
	writes int
}

// rest is the pause after a pass that wrote nothing.
const rest = 200 * time.Millisecond

// Run runs passes until the context is canceled, and completes the last one. It returns the writes, and the errors that
// MCM would log.
func (p *Process) Run(ctx context.Context) (made []string, err error) {
	passes := context.WithoutCancel(ctx)
	for ctx.Err() == nil {
		p.writes = 0
		all, failed := p.list(passes)
		if failed == nil {
			failed = p.pass(passes, all)
		}
		err = errors.Join(err, failed)
		if p.writes > 0 {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(rest):
		}
	}
	return slices.Sorted(maps.Keys(p.made)), err
}

// objects is everything that a pass reads.
type objects struct {
	deployments []v1alpha1.MachineDeployment
	sets        []v1alpha1.MachineSet
	machines    []v1alpha1.Machine
	classes     map[string]*v1alpha1.MachineClass
	nodes       map[string]*corev1.Node
}

func (p *Process) list(ctx context.Context) (*objects, error) {
	deployments, sets, machines := &v1alpha1.MachineDeploymentList{}, &v1alpha1.MachineSetList{}, &v1alpha1.MachineList{}
	classes, nodes := &v1alpha1.MachineClassList{}, &corev1.NodeList{}
	for _, list := range []client.ObjectList{deployments, sets, machines, classes} {
		if err := p.client.List(ctx, list, client.InNamespace(p.namespace)); err != nil {
			return nil, err
		}
	}
	if err := p.client.List(ctx, nodes); err != nil {
		return nil, err
	}
	all := &objects{
		deployments: deployments.Items, sets: sets.Items, machines: machines.Items,
		classes: map[string]*v1alpha1.MachineClass{}, nodes: map[string]*corev1.Node{},
	}
	for i := range classes.Items {
		all.classes[classes.Items[i].Name] = &classes.Items[i]
	}
	for i := range nodes.Items {
		all.nodes[nodes.Items[i].Name] = &nodes.Items[i]
	}
	return all, nil
}

// members returns the Machines that a MachineSet controls.
func (o *objects) members(set *v1alpha1.MachineSet) []*v1alpha1.Machine {
	var members []*v1alpha1.Machine
	for i := range o.machines {
		if metav1.IsControlledBy(&o.machines[i], set) {
			members = append(members, &o.machines[i])
		}
	}
	return members
}

// setsOf returns the MachineSets that a MachineDeployment controls, oldest first.
func (o *objects) setsOf(deployment *v1alpha1.MachineDeployment) []*v1alpha1.MachineSet {
	var sets []*v1alpha1.MachineSet
	for i := range o.sets {
		if metav1.IsControlledBy(&o.sets[i], deployment) {
			sets = append(sets, &o.sets[i])
		}
	}
	slices.SortFunc(sets, func(a, b *v1alpha1.MachineSet) int { return revisionOf(a) - revisionOf(b) })
	return sets
}

// update changes an object, writes it as a whole if it has changed, and reports whether it has. A conflict is not
// an error, because the next pass reads the object again.
func (p *Process) update(ctx context.Context, object client.Object, change func()) (bool, error) {
	return p.write(ctx, object, change, false)
}

// updateStatus is like update, for the status.
func (p *Process) updateStatus(ctx context.Context, object client.Object, change func()) (bool, error) {
	return p.write(ctx, object, change, true)
}

func (p *Process) write(ctx context.Context, object client.Object, change func(), status bool) (bool, error) {
	forget(object)
	before, err := flatten(object)
	if err != nil {
		return false, err
	}
	change()
	after, err := flatten(object)
	if err != nil {
		return false, err
	}
	fields := difference(before, after, status)
	if len(fields) == 0 {
		return false, nil
	}
	if status {
		err = p.client.Status().Update(ctx, object)
	} else {
		err = p.client.Update(ctx, object)
	}
	sub := ""
	if status {
		sub = "/status"
	}
	return p.wrote(object, "update", sub, fields, err)
}

// forget removes the fields that MCM's types lack. MCM does not read them, and its updates do not contain them.
func forget(object client.Object) {
	switch object := object.(type) {
	case *v1alpha1.MachineSet:
		object.Status.Selector = ""
	case *v1alpha1.MachineDeployment:
		object.Status.Selector = ""
	}
}

func (p *Process) create(ctx context.Context, object client.Object) error {
	fields, err := flatten(object)
	if err != nil {
		return err
	}
	_, err = p.wrote(object, "create", "", difference(nil, fields, false), p.client.Create(ctx, object))
	return err
}

func (p *Process) remove(ctx context.Context, object client.Object) error {
	_, err := p.wrote(object, "delete", "", []string{""}, p.client.Delete(ctx, object))
	return err
}

// wrote records a write and its error, if any.
func (p *Process) wrote(object client.Object, verb, sub string, fields []string, err error) (bool, error) {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return true, err
	}
	p.writes++
	gvk, err := apiutil.GVKForObject(object, p.client.Scheme())
	if err != nil {
		return true, err
	}
	resource := strings.ToLower(gvk.Kind) + "s"
	if gvk.Kind == "MachineClass" {
		resource = "machineclasses"
	}
	for _, field := range fields {
		p.made[strings.TrimSpace(strings.Join([]string{p.name, verb, resource + sub, field}, " "))] = true
	}
	return true, nil
}

// flatten returns the fields of an object with their values, except those that are not compared.
func flatten(object client.Object) (map[string]string, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	flat := map[string]string{}
	flattenInto(flat, "", fields)
	return flat, nil
}
