package warnings

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func TestMain(m *testing.M) { env.Main(m) }

const ofTheTemplate = "spec.template.spec.class.name: "

func ofClass(name string) func(*v1alpha1.Machine) {
	return func(m *v1alpha1.Machine) { m.Spec.Class.Name = name }
}

// other returns a class with one change.
func other(name string, change func(*v1alpha1.MachineClass)) *v1alpha1.MachineClass {
	class := fixture.MachineClass(change)
	class.Name = name
	return class
}

func pool(name, labels string, change func(*v1alpha1.MachineDeployment)) *v1alpha1.MachineDeployment {
	return fixture.Named(name, fixture.MachineDeployment(func(d *v1alpha1.MachineDeployment) {
		d.Spec.Selector.MatchLabels, d.Spec.Template.Labels = map[string]string{"name": labels}, map[string]string{"name": labels}
		change(d)
	}))
}

// TestWebhooks_Warnings checks the warnings for each kind of object. The webhooks read with the permissions of the machine
// controller, which serves them.
func TestWebhooks_Warnings(t *testing.T) {
	tier.All(t)
	e := env.New(t)
	for _, object := range []client.Object{
		fixture.Secret(), fixture.Named("empty", fixture.Secret(func(s *corev1.Secret) { s.Data = nil })),
		fixture.MachineClass(), other("no-secret", func(c *v1alpha1.MachineClass) { c.SecretRef.Name = "later" }),
		other("no-data", func(c *v1alpha1.MachineClass) { c.SecretRef.Name = "empty" }), other("foreign", func(c *v1alpha1.MachineClass) { c.Provider = "aws" }),
		pool("first", "one", func(*v1alpha1.MachineDeployment) {}),
		fixture.Named("set", fixture.MachineSet(func(s *v1alpha1.MachineSet) {
			s.Spec.Selector.MatchLabels, s.Spec.Template.Labels = map[string]string{"name": "set"}, map[string]string{"name": "set"}
		})),
	} {
		if err := e.Client.Create(t.Context(), fixture.In(e.Namespace, object)); err != nil {
			t.Fatal(err)
		}
	}
	reader, err := client.New(e.UserWith(t, "config/rbac/machine-controller-role.yaml"), client.Options{Scheme: env.NewScheme()})
	if err != nil {
		t.Fatal(err)
	}
	w := webhooks{live: lister{reader}, drivers: registry.Only("fake", fake.New(fake.Config{}))}
	foreign := `MachineClass "foreign" is for driver "aws", but this manager has the driver "fake"`
	for name, tc := range map[string]struct {
		object client.Object
		want   []string
	}{
		"machine":          {fixture.Machine(), nil},
		"machine, foreign": {fixture.Machine(ofClass("foreign")), []string{"spec.class.name: provider: " + foreign}},
		"machine, no class yet": {fixture.Machine(ofClass("later")), []string{
			`spec.class.name: MachineClass "later" not found; no machines are created until it exists`,
		}},
		"machine, a legacy kind": {fixture.Machine(func(m *v1alpha1.Machine) { m.Spec.Class.Kind = "AWSMachineClass" }), nil},
		"deployment":             {pool("another", "two", func(*v1alpha1.MachineDeployment) {}), nil},
		"deployment, several": {pool("another", "one", func(d *v1alpha1.MachineDeployment) {
			d.Spec.MinReadySeconds, d.Spec.Template.Spec.Class.Name = -1, "later"
		}), []string{
			"spec.minReadySeconds: Invalid value: -1: must not be negative",
			ofTheTemplate + `MachineClass "later" not found; no machines are created until it exists`,
			`spec.selector: this object and machine deployment "first" select each other's machines`,
		}},
		"set": {fixture.Named("another", fixture.MachineSet()), nil},
		"set, overlapping": {fixture.Named("another", fixture.MachineSet(func(s *v1alpha1.MachineSet) {
			s.Spec.Selector.MatchLabels, s.Spec.Template.Labels = map[string]string{"name": "set"}, map[string]string{"name": "set"}
			s.Spec.Template.Spec.Class.Name = "foreign"
		})), []string{ofTheTemplate + "provider: " + foreign, `spec.selector: this object and machine set "set" select each other's machines`}},
		"class": {other("another", func(*v1alpha1.MachineClass) {}), nil},
		"machine, no Secret": {fixture.Machine(ofClass("no-secret")), []string{
			`spec.class.name: secretRef: Secret "` + e.Namespace + `/later" of MachineClass "no-secret" not found`,
		}},
		"machine, no user data": {fixture.Machine(ofClass("no-data")), []string{
			`spec.class.name: secretRef: no Secret of MachineClass "no-data" has the key "userData"`,
		}},
		"class, foreign": {other("another", func(c *v1alpha1.MachineClass) { c.Provider = "aws" }), []string{
			`provider: MachineClass "another" is for driver "aws", but this manager has the driver "fake"`,
		}},
		"class with a Secret that does not exist": {other("another", func(c *v1alpha1.MachineClass) { c.SecretRef.Name = "later" }), nil},
		"class without a zone": {other("another", func(c *v1alpha1.MachineClass) { c.NodeTemplate = &v1alpha1.NodeTemplate{} }), []string{
			"nodeTemplate.capacity[cpu]: Required value: needed to scale from zero",
			"nodeTemplate.capacity[gpu]: Required value: needed to scale from zero",
			"nodeTemplate.capacity[memory]: Required value: needed to scale from zero",
			"nodeTemplate.instanceType: Required value: needed to scale from zero",
			"nodeTemplate.region: Required value: needed to scale from zero",
			"nodeTemplate.zone: Required value: needed to scale from zero",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := w.of(t.Context(), fixture.In(e.Namespace, tc.object))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, []string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// of calls the webhook of the object's kind.
func (w webhooks) of(ctx context.Context, object client.Object) ([]string, error) {
	switch object := object.(type) {
	case *v1alpha1.Machine:
		return w.machine(ctx, object)
	case *v1alpha1.MachineSet:
		return w.set(ctx, object)
	case *v1alpha1.MachineDeployment:
		return w.deployment(ctx, object)
	default:
		return w.class(ctx, object.(*v1alpha1.MachineClass))
	}
}

// TestWebhooks_WarnUsersOnly checks that users are warned about a creation and a change to the spec, and that nothing is denied.
func TestWebhooks_WarnUsersOnly(t *testing.T) {
	warn := warns[*v1alpha1.Machine](func(context.Context, *v1alpha1.Machine) ([]string, error) { return []string{"hm"}, nil })
	fails := warns[*v1alpha1.Machine](func(context.Context, *v1alpha1.Machine) ([]string, error) {
		return nil, context.DeadlineExceeded
	})
	of := func(change func(*v1alpha1.Machine)) *v1alpha1.Machine { return fixture.Machine(change) }
	same, changed := of(func(*v1alpha1.Machine) {}), of(func(m *v1alpha1.Machine) { m.Generation++ })
	owned := fixture.OwnedBy(fixture.MachineSet(), of(func(*v1alpha1.Machine) {}))
	leaving := of(func(m *v1alpha1.Machine) { m.Generation++; m.DeletionTimestamp = &metav1.Time{Time: fixture.Noon} })
	for name, tc := range map[string]struct {
		call   func() (admission.Warnings, error)
		warned bool
	}{
		"creation":                 {func() (admission.Warnings, error) { return warn.ValidateCreate(t.Context(), same) }, true},
		"creation by a controller": {func() (admission.Warnings, error) { return warn.ValidateCreate(t.Context(), owned) }, false},
		"spec":                     {func() (admission.Warnings, error) { return warn.ValidateUpdate(t.Context(), same, changed) }, true},
		"metadata":                 {func() (admission.Warnings, error) { return warn.ValidateUpdate(t.Context(), same, same) }, false},
		"being deleted":            {func() (admission.Warnings, error) { return warn.ValidateUpdate(t.Context(), same, leaving) }, false},
		"deletion":                 {func() (admission.Warnings, error) { return warn.ValidateDelete(t.Context(), same) }, false},
		"failed check":             {func() (admission.Warnings, error) { return fails.ValidateCreate(t.Context(), same) }, false},
	} {
		got, err := tc.call()
		if warned := slices.Contains(got, "hm"); err != nil || warned != tc.warned {
			t.Errorf("%s: warnings %q, error %v", name, got, err)
		}
	}
}
