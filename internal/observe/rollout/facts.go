// Package rollout shows and controls the rollout of a MachineDeployment.
//
// It needs no manager, only API access, and writes only fields of the deployment that MCM knows as
// well. Read and Follower make Facts of objects, StatusOf a Status of Facts, and View, Line and Brief
// text of a Status. Pause, Resume, Restart and Undo write.
package rollout

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain"
)

// Facts are what is known of a deployment at one moment. Nothing of them is changed.
type Facts struct {
	explain.PoolFacts
	// Problem is why changes are not seen now; empty if they are.
	Problem string
}

// Read reads the deployment, its sets and their machines once. Options are those of the lists.
func Read(ctx context.Context, from client.Reader, key types.NamespacedName, options ...client.ListOption) (Facts, error) {
	deployment, err := get(ctx, from, key)
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
	return factsOf(deployment, sets.Items, machines.Items), nil
}

// factsOf selects what is the deployment's from the sets and machines of its namespace.
func factsOf(deployment *v1alpha1.MachineDeployment, sets []v1alpha1.MachineSet, machines []v1alpha1.Machine) Facts {
	f := Facts{PoolFacts: explain.PoolFacts{Kind: explain.KindDeployment, Key: client.ObjectKeyFromObject(deployment), Deployment: deployment}}
	f.Own(sets)
	f.OwnMachines(machines)
	return f
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
