package main

import (
	"context"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
)

// The names of the APIs, as in the flag --apis of millwright manager.
const (
	mcm  = "mcm"
	capi = "capi"
)

// api is an API with MachineDeployments and Machines, and the manager that the benchmark measures with it.
type api struct {
	// command is the default command line of the manager.
	command string
	// phases are those that can be measured. If nil, all can.
	phases []string
	// budgets of the phases.
	budgets map[string]budget
	// declare creates the deployments, without Machines, and the objects that the manager needs for them.
	declare func(w *setup, ctx context.Context) error
	// ready waits until the manager can create Machines.
	ready func(w *setup, ctx context.Context) error
	// acted waits until the manager has carried out its first step for the Machine with which the first pool is scaled up
	// to the given number. Nothing else changes.
	acted func(w *setup, ctx context.Context, machines int) error
	// machines and deployments return empty lists.
	machines, deployments func() client.ObjectList
	// deployment returns an empty object.
	deployment func() client.Object
	// replacement is a patch of a deployment after which all Machines are replaced.
	replacement string
	// stateOf returns the state of a Machine, and false for other objects.
	stateOf func(object client.Object) (machineState, bool)
	// isDone reports whether the status of a deployment is complete. It returns false for other objects.
	isDone func(object client.Object, machines int32) bool
}

var apis = map[string]api{mcm: mcmAPI, capi: clusterAPI}

// apiNames lists the names for users.
func apiNames() string { return strings.Join(slices.Sorted(maps.Keys(apis)), ", ") }

// mcmAPI is machine.sapcloud.io, for which only millwright manager runs.
var mcmAPI = api{
	command:     defaultCommand,
	budgets:     mcmBudgets,
	declare:     (*setup).declareMCM,
	ready:       func(*setup, context.Context) error { return nil },
	acted:       (*setup).awaitCreation,
	machines:    func() client.ObjectList { return &v1alpha1.MachineList{} },
	deployments: func() client.ObjectList { return &v1alpha1.MachineDeploymentList{} },
	deployment:  func() client.Object { return &v1alpha1.MachineDeployment{} },
	replacement: `{"spec":{"template":{"spec":{"class":{"name":"` + secondClass + `"}}}}}`,
	stateOf: func(object client.Object) (machineState, bool) {
		machine, ok := object.(*v1alpha1.Machine)
		if !ok {
			return machineState{}, false
		}
		leaving := !counts.Active(machine)
		return machineState{
			pool: client.ObjectKey{Namespace: machine.Namespace, Name: machine.Labels["name"]}, node: machine.NodeName(),
			leaving: leaving, available: !leaving && counts.Usable(machine),
		}, true
	},
	isDone: func(object client.Object, machines int32) bool {
		d, ok := object.(*v1alpha1.MachineDeployment)
		return ok && d.Status.ObservedGeneration >= d.Generation && d.Status.Replicas == machines &&
			d.Status.UpdatedReplicas == machines && d.Status.AvailableReplicas == machines
	},
}
