package security

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// older creates a class of each legacy kind with its Secret, and an empty MachineSet and a MachineDeployment that
// refer to it.
func (m *managed) older() {
	m.t.Helper()
	m.InstallCRDs(m.t, "config/crd/legacy")
	for _, kind := range legacy.Kinds() {
		class := m.olderClass(kind)
		class.SetFinalizers([]string{v1alpha1.FinalizerLegacy})
		secretRef := map[string]any{"namespace": m.Namespace, "name": class.GetName()}
		class.Object["spec"] = map[string]any{"secretRef": secretRef}
		set, deployment := m.olderSet(kind), m.olderDeployment(kind)
		template := v1alpha1.MachineTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"name": class.GetName()}}}
		template.Spec.Class = v1alpha1.ClassSpec{Kind: kind, Name: class.GetName()}
		set.Spec = v1alpha1.MachineSetSpec{Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template}
		deployment.Spec = v1alpha1.MachineDeploymentSpec{Selector: set.Spec.Selector, Template: template, Paused: true}
		m.create(m.admin, m.class(class.GetName(), `{}`)[0], class, set, deployment)
	}
}

func (m *managed) olderClass(kind string) *unstructured.Unstructured {
	class := &unstructured.Unstructured{}
	class.SetGroupVersionKind(legacy.SchemeGroupVersion.WithKind(kind))
	class.SetNamespace(m.Namespace)
	class.SetName(strings.ToLower(kind))
	return class
}

func (m *managed) olderSet(kind string) *v1alpha1.MachineSet {
	return &v1alpha1.MachineSet{ObjectMeta: m.meta(strings.ToLower(kind))}
}

func (m *managed) olderDeployment(kind string) *v1alpha1.MachineDeployment {
	return &v1alpha1.MachineDeployment{ObjectMeta: m.meta(strings.ToLower(kind))}
}

// migrates waits for the migration of the legacy classes, and deletes them.
func (m *managed) migrates() {
	m.t.Helper()
	for _, kind := range legacy.Kinds() {
		class := m.olderClass(kind)
		m.eventually(kind+" is migrated", func() bool {
			err := m.admin.Get(m.t.Context(), client.ObjectKeyFromObject(class), class)
			return err == nil && class.GetAnnotations()[legacy.AnnotationMigrated] != "" && len(class.GetFinalizers()) == 0
		})
		m.delete(class)
		for _, object := range []client.Object{m.olderDeployment(kind), m.olderSet(kind)} {
			m.delete(object)
			m.gone(m.admin, object)
		}
	}
}
