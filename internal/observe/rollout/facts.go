// Package rollout shows the rollout of a MachineDeployment.
//
// It needs no manager, only API access, and writes nothing. Read and Follower make Facts of objects,
// StatusOf a Status of Facts, and View, Line and Brief text of a Status.
package rollout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/pool"
	"github.com/millwright-dev/millwright/internal/pool/revision"
)

// Facts are what is known of a deployment at one moment. Nothing of them is changed.
type Facts struct {
	pool.Facts
	// Problem is why changes are not seen now; empty if they are.
	Problem string
}

// Read reads the deployment, its sets and their machines once. Options are those of the lists.
func Read(ctx context.Context, from client.Reader, key types.NamespacedName, options ...client.ListOption) (Facts, error) {
	deployment, err := Get(ctx, from, key)
	if err != nil {
		return Facts{}, err
	}
	options = append(options, client.InNamespace(key.Namespace))
	sets, machines := &v1alpha1.MachineSetList{}, &v1alpha1.MachineList{}
	if err := from.List(ctx, sets, options...); err != nil {
		return Facts{}, fmt.Errorf("listing machine sets: %w", err)
	}
	if err := from.List(ctx, machines, options...); err != nil {
		return Facts{}, fmt.Errorf("listing machines: %w", err)
	}
	return FactsOf(deployment, sets.Items, machines.Items), nil
}

// FactsOf selects what is the deployment's from the sets and machines of its namespace.
func FactsOf(deployment *v1alpha1.MachineDeployment, sets []v1alpha1.MachineSet, machines []v1alpha1.Machine) Facts {
	f := Facts{Facts: pool.Facts{Kind: explain.KindDeployment, Key: client.ObjectKeyFromObject(deployment), Deployment: deployment}}
	f.Own(sets)
	f.OwnMachines(machines)
	return f
}

var errNotFound = errors.New("there is no machine deployment")

// Get reads a deployment. It is an error if there is none.
func Get(ctx context.Context, from client.Reader, key types.NamespacedName) (*v1alpha1.MachineDeployment, error) {
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

// Find returns the set of a revision, or says why there is none. 0 is the last one of another
// template than the deployment's, which may have no set yet, or an old one that has no new number
// yet. By the controllers' rule, the last but one, machines would go that are in use.
func Find(f Facts, wanted int64) (*v1alpha1.MachineSet, error) {
	d, set := f.Deployment, revision.Pick(f.Sets, wanted)
	if wanted == 0 {
		set = nil
		for _, numbered := range revision.Sorted(f.Sets) {
			if !revision.Same(&numbered.Spec.Template, &d.Spec.Template) {
				set = numbered
			}
		}
	}
	switch {
	case set != nil:
		return set, nil
	case wanted == 0:
		return nil, fmt.Errorf("machine deployment %s/%s has no revision before the current one", d.Namespace, d.Name)
	}
	var known []string
	for _, set := range revision.Sorted(f.Sets) {
		known = append(known, strconv.FormatInt(revision.Number(set), 10))
	}
	return nil, fmt.Errorf("machine deployment %s/%s has no revision %d; it has %s", d.Namespace, d.Name, wanted, cmp.Or(strings.Join(known, ", "), "none"))
}
