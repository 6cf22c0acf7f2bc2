package rollout

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain"
)

// Surroundings are further objects that explain why a rollout does not go on. A field is nil or
// empty where there is none, where the user may not read it, or where the API server does not
// answer.
type Surroundings struct {
	// Lease is the one that the manager of sets and deployments holds, MachineLease that of
	// the manager of their Machines.
	Lease, MachineLease *coordinationv1.Lease
	// Events are those on machines, and those on sets that wait since their machines keep failing.
	Events []corev1.Event
}

// surroundingsTimeout is how long an API server may take to answer.
const surroundingsTimeout = 3 * time.Second

func readSurroundings(ctx context.Context, from client.Reader, namespace string) Surroundings {
	ctx, cancel := context.WithTimeout(ctx, surroundingsTimeout)
	defer cancel()
	found := Surroundings{
		Lease:        readLease(ctx, from, namespace, v1alpha1.LeaseMachineControllerManager),
		MachineLease: readLease(ctx, from, namespace, v1alpha1.LeaseMachineController),
	}
	for _, of := range []client.MatchingFields{
		{"involvedObject.kind": explain.KindMachine},
		{"involvedObject.kind": explain.KindSet, "reason": "BackOff"},
	} {
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
