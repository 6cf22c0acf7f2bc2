package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/fstest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
)

// legacyClasses contains the scenarios of a MachineDeployment that uses a class of a legacy kind.
var legacyClasses = []scenario{
	{
		name: "legacy class", classes: true, also: []setup{apart},
		given:  givenLegacy,
		act:    takeOver,
		want:   migrated(2),
		always: both(both(most(2), least(2)), both(onlyNamed, migratedOnce)),
	},
	{
		name: "legacy class of new Machines", classes: true,
		given:  func(context.Context, *run) error { return nil },
		act:    declareLegacy,
		want:   migrated(1),
		always: both(most(1), migratedOnce),
	},
	{
		name: "legacy class of Machines being deleted", classes: true,
		given:  givenLegacy,
		act:    inTurn(removeMachines, takeOver, removeAll),
		want:   nothing,
		always: both(most(2), migratedOnce),
	},
}

// installLegacyClass makes a cluster serve one of the legacy kinds.
func installLegacyClass(t *testing.T, c *env.Cluster) {
	t.Helper()
	const name = "machine.sapcloud.io_awsmachineclasses.yaml"
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "config/crd/legacy", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := controlplane.InstallCRDs(t.Context(), c.Admin, fstest.MapFS{name: {Data: text}}); err != nil {
		t.Fatal(err)
	}
}

// legacyClass returns the class as an object of a legacy kind.
func (r *run) legacyClass() *legacy.AWSMachineClass {
	class := &legacy.AWSMachineClass{ObjectMeta: metav1.ObjectMeta{
		Name: pool, Finalizers: []string{v1alpha1.FinalizerMCM, v1alpha1.FinalizerLegacy},
	}}
	class.Spec.AMI, class.Spec.Tags = "ami", map[string]string{"kubernetes.io/cluster/crash": "1"}
	class.Spec.SecretRef = &corev1.SecretReference{Namespace: r.control.Namespace, Name: pool}
	return class
}

// givenLegacy creates two running Machines in the state in which a stopped older MCM left them: their class is of
// a legacy kind, and all objects have its finalizers.
func givenLegacy(ctx context.Context, r *run) error {
	if err := givenDeployment(2)(ctx, r); err != nil {
		return err
	}
	r.gate.replace()
	if err := r.eachUser(ctx, func(user client.Object) error {
		user.SetFinalizers([]string{v1alpha1.FinalizerLegacy})
		for _, ref := range classesOf(user) {
			ref.Kind = legacy.AWS
		}
		return r.control.Client.Update(ctx, user)
	}); err != nil {
		return err
	}
	for object, finalizers := range map[client.Object][]string{
		&corev1.Secret{ObjectMeta: r.poolMeta()}:         {v1alpha1.FinalizerMCM, v1alpha1.FinalizerLegacy},
		&v1alpha1.MachineClass{ObjectMeta: r.poolMeta()}: nil,
	} {
		if err := r.control.Client.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		object.SetFinalizers(finalizers)
		if err := r.control.Client.Update(ctx, object); err != nil {
			return err
		}
	}
	if err := r.control.Client.Delete(ctx, &v1alpha1.MachineClass{ObjectMeta: r.poolMeta()}); err != nil {
		return err
	}
	return r.create(ctx, r.legacyClass())
}

// takeOver starts a manager.
func takeOver(_ context.Context, r *run) error { return r.manage() }

// declareLegacy creates a MachineDeployment whose class is of a legacy kind.
func declareLegacy(ctx context.Context, r *run) error {
	if err := r.create(ctx, r.classSecret(), r.legacyClass()); err != nil {
		return err
	}
	return r.declareDeployment(ctx, 1, func(deployment *v1alpha1.MachineDeployment) {
		deployment.Spec.Template.Spec.Class.Kind = legacy.AWS
	})
}

// eachUser calls a function for all MachineDeployments, MachineSets and Machines.
func (r *run) eachUser(ctx context.Context, do func(client.Object) error) error {
	for _, list := range []client.ObjectList{&v1alpha1.MachineDeploymentList{}, &v1alpha1.MachineSetList{}, &v1alpha1.MachineList{}} {
		if err := r.list(ctx, list); err != nil {
			return err
		}
		users, err := objectsOf(list)
		if err != nil {
			return err
		}
		for _, user := range users {
			if err := do(user); err != nil {
				return fmt.Errorf("%T %s: %w", user, user.GetName(), err)
			}
		}
	}
	return nil
}

// classesOf returns the references to classes of a Machine, MachineSet or MachineDeployment.
func classesOf(user client.Object) []*v1alpha1.ClassSpec {
	switch user := user.(type) {
	case *v1alpha1.Machine:
		return []*v1alpha1.ClassSpec{&user.Spec.Class}
	case *v1alpha1.MachineSet:
		return []*v1alpha1.ClassSpec{&user.Spec.Template.Spec.Class}
	case *v1alpha1.MachineDeployment:
		return []*v1alpha1.ClassSpec{&user.Spec.Template.Spec.Class}
	default:
		return nil
	}
}

// migrated checks that that many Machines run, each with its original VM, and that the MachineClass has replaced
// the legacy class in all objects.
func migrated(machines int) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		if err := running(machines)(ctx, r); err != nil {
			return err
		}
		journal, err := r.cloud.Journal()
		if err != nil {
			return err
		}
		for machine, history := range sim.Histories(journal) {
			if got := len(history.ProviderIDs); got > 1 {
				return fmt.Errorf("machine %s had %d VMs", machine, got)
			}
		}
		if err := r.handedOver(ctx); err != nil {
			return err
		}
		return r.eachUser(ctx, func(user client.Object) error {
			for _, ref := range classesOf(user) {
				if want := (v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: pool}); *ref != want {
					return fmt.Errorf("refers to %v", *ref)
				}
			}
			return finalizedBy(user, v1alpha1.FinalizerMCM)
		})
	}
}

// handedOver checks the legacy class, its MachineClass and its Secret.
func (r *run) handedOver(ctx context.Context) error {
	old, class, secret := &legacy.AWSMachineClass{}, &v1alpha1.MachineClass{}, &corev1.Secret{}
	for _, object := range []client.Object{old, class, secret} {
		if err := r.control.Client.Get(ctx, client.ObjectKey{Namespace: r.control.Namespace, Name: pool}, object); err != nil {
			return err
		}
	}
	if _, marked := old.Annotations[legacy.AnnotationMigrated]; !marked {
		return errors.New("the legacy class is not marked")
	}
	if from := class.Annotations[legacy.AnnotationMigratedFrom]; from != legacy.AWS {
		return fmt.Errorf("the class is migrated from %q", from)
	}
	return errors.Join(finalizedBy(old), finalizedBy(class, v1alpha1.FinalizerMCM), finalizedBy(secret, v1alpha1.FinalizerSecret))
}

// finalizedBy checks that an object has exactly these finalizers.
func finalizedBy(object client.Object, want ...string) error {
	if got := object.GetFinalizers(); !slices.Equal(got, want) {
		return fmt.Errorf("%T %s has the finalizers %q, not %q", object, object.GetName(), got, want)
	}
	return nil
}

// migratedOnce requires that only one MachineClass is created, that nothing refers to it before it exists or to
// the legacy kind afterwards, and that there is never a second MachineSet.
func migratedOnce(_ *run, was, is moment) error {
	if len(is.classes) > 1 || len(is.sets) > 1 {
		return fmt.Errorf("%w: %d classes and %d sets", errMigratedTwice, len(is.classes), len(is.sets))
	}
	// A deletion increments the generation, too.
	if before, after := was.classes[pool], is.classes[pool]; before != nil && after != nil && after.DeletionTimestamp.IsZero() &&
		(before.UID != after.UID || before.Generation != after.Generation) {
		return fmt.Errorf("%w: the class is made, or filled, again", errMigratedTwice)
	}
	for name, machine := range is.machines {
		if err := onlyForwards(is, was.machines[name], machine); err != nil {
			return err
		}
	}
	for name, set := range is.sets {
		if err := onlyForwards(is, was.sets[name], set); err != nil {
			return err
		}
	}
	return nil
}

// onlyForwards checks the reference of one object.
func onlyForwards[O interface {
	*v1alpha1.Machine | *v1alpha1.MachineSet
	client.Object
}](now moment, before, after O) error {
	migrated := func(object O) bool { return classesOf(object)[0].Kind == v1alpha1.MachineClassKind }
	if before != nil && migrated(before) && !migrated(after) {
		return fmt.Errorf("%w: %s refers to the legacy class again", errMigratedTwice, after.GetName())
	}
	// An object that is being deleted may outlive the class.
	if migrated(after) && (before == nil || !migrated(before)) && now.classes[pool] == nil {
		return fmt.Errorf("%w: of %s", errNoClass, after.GetName())
	}
	return nil
}
