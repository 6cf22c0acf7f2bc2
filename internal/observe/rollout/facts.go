// Package rollout shows the rollout of a MachineDeployment.
//
// It only reads from the API server and works without a running manager. Read and Follower gather
// Facts, StatusOf computes a Status from Facts, and View, Line and Brief format a Status.
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

// Facts are the state of a deployment at one moment. They are not modified.
type Facts struct {
	pool.Facts
	// Problem is why changes are currently not received, or "" if they are.
	Problem string
}

// Read reads the deployment, its sets and their machines once. The options apply to the lists.
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

// FactsOf selects the sets and machines that belong to the deployment from those of its namespace.
func FactsOf(deployment *v1alpha1.MachineDeployment, sets []v1alpha1.MachineSet, machines []v1alpha1.Machine) Facts {
	f := Facts{Facts: pool.Facts{Kind: explain.KindDeployment, Key: client.ObjectKeyFromObject(deployment), Deployment: deployment}}
	f.Own(sets)
	f.OwnMachines(machines)
	return f
}

var errNotFound = errors.New("not found")

// Get reads a deployment. It returns an error if the deployment does not exist.
func Get(ctx context.Context, from client.Reader, key types.NamespacedName) (*v1alpha1.MachineDeployment, error) {
	deployment := &v1alpha1.MachineDeployment{}
	err := from.Get(ctx, key, deployment)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("machine deployment %q %w in namespace %q", key.Name, errNotFound, key.Namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("reading machine deployment %s: %w", key, err)
	}
	return deployment, nil
}

// Find returns the set of a revision, or an error that lists the existing revisions. Revision 0
// means the last one whose template differs from the deployment's. The controllers' rule, the last
// but one, is not used: if the current template has no set yet, or an old set that is not
// renumbered yet, it would remove machines that are in use.
func Find(f Facts, number int64) (*v1alpha1.MachineSet, error) {
	d, set := f.Deployment, revision.Pick(f.Sets, number)
	if number == 0 {
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
	case number == 0:
		return nil, fmt.Errorf("machine deployment %s/%s has no revision before the current one", d.Namespace, d.Name)
	}
	var known []string
	for _, set := range revision.Sorted(f.Sets) {
		known = append(known, strconv.FormatInt(revision.Number(set), 10))
	}
	return nil, fmt.Errorf("machine deployment %s/%s has no revision %d; it has %s", d.Namespace, d.Name, number, cmp.Or(strings.Join(known, ", "), "none"))
}
