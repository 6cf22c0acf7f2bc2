package crash

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// faultsOfClass is the annotation of a class that makes the simulated provider reject calls.
const faultsOfClass = "sim.millwright.dev/faults"

// scarcities contains the scenarios of MachineDeployments whose first class has no capacity.
var scarcities = []scenario{
	{
		name: "fall back", also: []setup{apart, noTarget},
		given:  givenScarcity,
		act:    func(ctx context.Context, r *run) error { return r.declareDeployment(ctx, 2, fallingBackTo(newClass)) },
		want:   allOf(2, newClass),
		always: most(2),
	},
	{
		name:   "a list for machines that wait",
		given:  givenScarcity,
		act:    inTurn(func(ctx context.Context, r *run) error { return r.declareDeployment(ctx, 2) }, listClasses),
		want:   allOf(2, newClass),
		always: most(2),
	},
}

// givenScarcity creates a class without capacity, and another one.
func givenScarcity(ctx context.Context, r *run) error {
	return errors.Join(declareNewClass(ctx, r), r.create(ctx, r.classSecret(),
		&v1alpha1.MachineClass{
			ObjectMeta: metav1.ObjectMeta{Name: pool, Annotations: map[string]string{
				faultsOfClass: `[{"method":"CreateMachine","codes":["ResourceExhausted"],"times":-1}]`,
			}},
			Provider:     simDriver,
			ProviderSpec: runtime.RawExtension{Raw: []byte(`{}`)},
			SecretRef:    &corev1.SecretReference{Namespace: r.control.Namespace, Name: pool},
		}))
}

func fallingBackTo(class string) deploymentOption {
	return func(deployment *v1alpha1.MachineDeployment) { deployment.Spec.FallbackClasses = []string{class} }
}

// listClasses sets the fallback classes of the MachineDeployment.
func listClasses(ctx context.Context, r *run) error {
	return r.patchDeployment(ctx, `{"spec":{"fallbackClasses":["`+newClass+`"]}}`)
}
