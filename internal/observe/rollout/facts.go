// Package rollout shows and controls the rollout of a MachineDeployment.
//
// It needs no manager, only API access, and writes only fields of the deployment that MCM knows as
// well. Read and Follower make Facts of objects, StatusOf a Status of Facts, and View, Line and Brief
// text of a Status. Pause, Resume, Restart and Undo write.
package rollout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
	"github.com/millwright-dev/millwright/internal/observe/explain"
)

// Facts are what is known of a deployment at one moment. Nothing of them is changed.
type Facts struct {
	Deployment *v1alpha1.MachineDeployment
	// Sets are those that the deployment controls, the oldest first.
	Sets []*v1alpha1.MachineSet
	// Machines are those of each set, by its UID.
	Machines map[types.UID][]*v1alpha1.Machine
	// Surroundings are further objects that explain why a rollout does not go on.
	Surroundings Surroundings
	// Problem is why changes are not seen now; empty if they are.
	Problem string
}

// factsOf selects what is the deployment's from the sets and machines of its namespace.
func factsOf(deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet, machines []*v1alpha1.Machine) Facts {
	f := Facts{Deployment: deployment, Machines: map[types.UID][]*v1alpha1.Machine{}}
	for _, set := range sets {
		if metav1.IsControlledBy(set, deployment) {
			f.Sets = append(f.Sets, set)
			f.Machines[set.UID] = nil
		}
	}
	slices.SortFunc(f.Sets, revision.Older)
	for _, machine := range machines {
		owner := metav1.GetControllerOfNoCopy(machine)
		if owner == nil {
			continue
		}
		if _, ours := f.Machines[owner.UID]; ours {
			f.Machines[owner.UID] = append(f.Machines[owner.UID], machine)
		}
	}
	for _, of := range f.Machines {
		slices.SortFunc(of, func(a, b *v1alpha1.Machine) int { return cmp.Compare(a.Name, b.Name) })
	}
	return f
}

// current is the set of the deployment's template; nil if there is none yet.
func (f Facts) current() *v1alpha1.MachineSet {
	return revision.Current(f.Sets, &f.Deployment.Spec.Template)
}

// pool are the same facts for package explain.
func (f Facts) pool() explain.PoolFacts {
	made := explain.PoolFacts{
		Kind: explain.KindDeployment, Key: client.ObjectKeyFromObject(f.Deployment), Deployment: f.Deployment,
		Events: f.Surroundings.Events, Lease: f.Surroundings.Lease, MachineLease: f.Surroundings.MachineLease, Sets: f.Sets,
	}
	for _, set := range f.Sets {
		made.Machines = append(made.Machines, f.Machines[set.UID]...)
	}
	return made
}

// Read reads the facts once, without Surroundings.
func Read(ctx context.Context, from client.Reader, key types.NamespacedName) (Facts, error) {
	deployment, err := get(ctx, from, key)
	if err != nil {
		return Facts{}, err
	}
	sets, machines := &v1alpha1.MachineSetList{}, &v1alpha1.MachineList{}
	if err := from.List(ctx, sets, client.InNamespace(key.Namespace)); err != nil {
		return Facts{}, fmt.Errorf("listing machine sets: %w", err)
	}
	if err := from.List(ctx, machines, client.InNamespace(key.Namespace)); err != nil {
		return Facts{}, fmt.Errorf("listing machines: %w", err)
	}
	return factsOf(deployment, pointers(sets.Items), pointers(machines.Items)), nil
}

var errNotFound = errors.New("there is no machine deployment")

// get reads a deployment. That there is none is errNotFound.
func get(ctx context.Context, from client.Reader, key types.NamespacedName) (*v1alpha1.MachineDeployment, error) {
	deployment := &v1alpha1.MachineDeployment{}
	err := from.Get(ctx, key, deployment)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%w %q in namespace %q", errNotFound, key.Name, key.Namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("reading machine deployment %s: %w", key, err)
	}
	return deployment, nil
}

func pointers[T any](items []T) []*T {
	to := make([]*T, len(items))
	for i := range items {
		to[i] = &items[i]
	}
	return to
}

// Surroundings explain why a rollout does not go on. Fields are empty if there is no such object, the
// user may not read it, or the API server does not answer.
type Surroundings struct {
	// Lease is that of the manager of sets and deployments, MachineLease that of the manager of their
	// Machines.
	Lease, MachineLease *coordinationv1.Lease
	// Events are those on sets that wait since their machines keep failing and, if machines are being
	// deleted, those on machines, which say at which step.
	Events []corev1.Event
}

const surroundingsTimeout = 3 * time.Second

func readSurroundings(ctx context.Context, from client.Reader, facts Facts) Surroundings {
	namespace := facts.Deployment.Namespace
	ctx, cancel := context.WithTimeout(ctx, surroundingsTimeout)
	defer cancel()
	found := Surroundings{
		Lease:        readLease(ctx, from, namespace, v1alpha1.LeaseMachineControllerManager),
		MachineLease: readLease(ctx, from, namespace, v1alpha1.LeaseMachineController),
	}
	wanted := []client.MatchingFields{{"involvedObject.kind": explain.KindSet, "reason": "BackOff"}}
	if slices.ContainsFunc(facts.pool().Machines, func(machine *v1alpha1.Machine) bool { return !machine.DeletionTimestamp.IsZero() }) {
		wanted = append(wanted, client.MatchingFields{"involvedObject.kind": explain.KindMachine})
	}
	for _, of := range wanted {
		events := &corev1.EventList{}
		if err := from.List(ctx, events, client.InNamespace(namespace), of); err == nil {
			found.Events = append(found.Events, events.Items...)
		}
	}
	return found
}

func readLease(ctx context.Context, from client.Reader, namespace, name string) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{}
	if err := from.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, lease); err != nil {
		return nil
	}
	return lease
}
