package mcmsuite

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func secret(namespace string) *corev1.Secret {
	return fixture.In(namespace, fixture.Named("test-mc-secret", fixture.Secret()))
}

func class(namespace, name string) *v1alpha1.MachineClass {
	return fixture.In(namespace, fixture.Named(name, fixture.MachineClass(func(c *v1alpha1.MachineClass) {
		c.Provider, c.SecretRef.Name = "sim", "test-mc-secret"
		c.ProviderSpec = runtime.RawExtension{Raw: []byte(`{}`)}
	})))
}

// newDeployment returns the MachineDeployment of MCM's suite. Its minReadySeconds exceed the timeout of the
// suite.
func newDeployment(namespace string) *v1alpha1.MachineDeployment {
	labels := map[string]string{"name": deploymentName}
	deployment := fixture.Deployment(0, fixture.OfClass(firstClass), fixture.Rolling("2", "1"), func(d *v1alpha1.MachineDeployment) {
		d.Spec.MinReadySeconds = 500
		d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
		d.Spec.Template.Labels = labels
	})
	return fixture.In(namespace, fixture.Named(deploymentName, deployment))
}

type specification struct {
	name string
	run  func(*suite)
}

// TestMCMSuite_MachineSpecifications runs the first two of MCM's ten specifications.
func TestMCMSuite_MachineSpecifications(t *testing.T) {
	newSuite(t).inOrder([]specification{
		{"1_a_Machine_adds_a_node", (*suite).addsANode},
		{"2_a_deletion_removes_it", (*suite).removesTheNode},
	})
}

// TestMCMSuite_Specifications runs the ten specifications in MCM's order: each continues from the state of the
// previous one. In between, it runs user scenarios that the suite does not contain.
func TestMCMSuite_Specifications(t *testing.T) {
	tier.All(t)
	newSuite(t).inOrder([]specification{
		{"1_a_Machine_adds_a_node", (*suite).addsANode},
		{"2_a_deletion_removes_it", (*suite).removesTheNode},
		{"3_a_deletion_of_no_Machine", (*suite).deletesNothing},
		{"4_a_deployment_of_0_then_1", (*suite).becomesAvailable},
		{"two_conditions", (*suite).hasTwoConditions},
		{"5_scale_up_to_6", (*suite).scalesUp},
		{"6_scale_down_to_2", (*suite).scalesDown},
		{"a_bare_name_to_delete", (*suite).deletesByBareName},
		{"7_frozen_and_unfrozen", (*suite).freezes},
		{"8_a_second_class_and_4", (*suite).rolls},
		{"metrics", (*suite).hasMetrics},
		{"9_deletion_of_the_deployment", (*suite).deletesTheDeployment},
		{"10_no_orphans", (*suite).leavesNothing},
		{"logs", (*suite).logsNoProblems},
	})
}

// inOrder runs specifications, each of which continues from the state of the previous one.
func (s *suite) inOrder(specs []specification) {
	t := s.t
	for _, spec := range specs {
		passed := t.Run(spec.name, func(t *testing.T) {
			s.t = t
			s.alive()
			spec.run(s)
		})
		s.t = t
		if !passed {
			t.Fatalf("%s fails, and the others depend on it", spec.name)
		}
	}
}

func (s *suite) addsANode() {
	labels := map[string]string{"name": machineName}
	s.create(fixture.In(s.Namespace, fixture.Named(machineName, fixture.Machine(func(m *v1alpha1.Machine) {
		m.Labels, m.Spec.Class.Name = labels, firstClass
	}))))
	s.hasNodes(1)
}

func (s *suite) delete(name string) error {
	return s.Client.Delete(s.t.Context(), &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name}})
}

func (s *suite) removesTheNode() {
	s.must(s.delete(machineName))
	s.hasNodes(0)
}

func (s *suite) deletesNothing() {
	if err := s.delete("test-machine-dummy"); !apierrors.IsNotFound(err) {
		s.t.Errorf("the API server returned %v", err)
	}
	s.hasNodes(0)
}

// becomesAvailable checks that the Machine becomes available although it is younger than its minReadySeconds,
// which MCM ignores.
func (s *suite) becomesAvailable() {
	s.create(newDeployment(s.Namespace))
	s.eventually(func(g gomega.Gomega) {
		g.Expect(s.deployment(g).Status.ObservedGeneration).NotTo(gomega.BeZero())
	})
	s.hasNodes(0)
	s.scale(1)
	s.eventually(func(g gomega.Gomega) {
		status := s.deployment(g).Status
		g.Expect(status.AvailableReplicas).To(gomega.BeEquivalentTo(1))
		g.Expect(conditions(status)).To(gomega.ConsistOf("Available True MinimumReplicasAvailable", "Progressing True NewMachineSetAvailable"))
	})
	s.hasNodes(1)
}

// conditions returns "type status reason" of each condition.
func conditions(status v1alpha1.MachineDeploymentStatus) []string {
	var output []string
	for _, c := range status.Conditions {
		output = append(output, fmt.Sprintf("%s %s %s", c.Type, c.Status, c.Reason))
	}
	return output
}

// hasTwoConditions checks the number of conditions, as MCM's suite does. The MachineDeployment is settled, and
// its controllers have observed the last generation.
func (s *suite) hasTwoConditions() {
	s.eventually(func(g gomega.Gomega) {
		deployment := s.deployment(g)
		g.Expect(deployment.Status.ObservedGeneration).To(gomega.Equal(deployment.Generation))
		g.Expect(deployment.Status.Conditions).To(gomega.HaveLen(2))
	})
}

func (s *suite) scalesUp() {
	s.scale(6)
	s.hasNodes(6)
}

func (s *suite) scalesDown() {
	s.scale(2)
	s.hasNodes(2)
}

// deletesByBareName checks that a Machine is deleted and immediately replaced if an older autoscaler names it
// without a time, and does not change the replicas.
func (s *suite) deletesByBareName() {
	before := s.names()
	named := before[1]
	s.change(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationKeyTriggerDeletion, named)
	s.eventually(func(g gomega.Gomega) {
		now := s.machines()
		g.Expect(now).To(gomega.HaveLen(2))
		g.Expect(now).NotTo(gomega.HaveKey(named))
		g.Expect(now).To(gomega.HaveKeyWithValue(before[0], v1alpha1.MachineRunning), "the one that was not named")
		for name, phase := range now {
			g.Expect(phase).To(gomega.Equal(v1alpha1.MachineRunning), name)
		}
		g.Expect(s.deployment(g).Annotations).NotTo(gomega.HaveKey(v1alpha1.AnnotationKeyTriggerDeletion))
	})
	s.hasNodes(2)
}

// freezes checks that a MachineSet with more Machines than its MachineDeployment permits creates none.
func (s *suite) freezes() {
	const many = 30
	s.scale(many)
	s.eventually(func(g gomega.Gomega) { g.Expect(s.machines()).To(gomega.HaveLen(many)) })
	s.scale(2)
	for _, reason := range []string{"FrozeMachineSet", "UnfrozeMachineSet"} {
		s.eventually(func(g gomega.Gomega) { g.Expect(s.events(g)).To(gomega.ContainElement(reason)) })
	}
	s.hasNodes(2)
}

// events returns the reasons of all events about MachineSets.
func (s *suite) events(g gomega.Gomega) []string {
	list := &corev1.EventList{}
	g.Expect(s.Client.List(s.t.Context(), list, client.InNamespace(s.Namespace))).To(gomega.Succeed())
	var reasons []string
	for i := range list.Items {
		if list.Items[i].InvolvedObject.Kind == "MachineSet" {
			reasons = append(reasons, list.Items[i].Reason)
		}
	}
	return reasons
}

func (s *suite) rolls() {
	old := s.names()
	s.change(`{"spec":{"replicas":4,"template":{"spec":{"class":{"name":%q}}}}}`, secondClass)
	s.eventually(func(g gomega.Gomega) {
		status := s.deployment(g).Status
		g.Expect(status.UpdatedReplicas).To(gomega.BeEquivalentTo(4))
		g.Expect(status.AvailableReplicas).To(gomega.BeEquivalentTo(4))
		g.Expect(status.Replicas).To(gomega.BeEquivalentTo(4))
	})
	s.hasNodes(4)
	for _, name := range s.names() {
		if slices.Contains(old, name) {
			s.t.Errorf("%s was not replaced", name)
		}
	}
}

func (s *suite) deletesTheDeployment() {
	s.must(s.Client.Delete(s.t.Context(), &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: deploymentName}}))
	s.hasNodes(0)
}

// leavesNothing checks that no VMs, objects or tokens remain, and that the classes and the Secret can be deleted.
func (s *suite) leavesNothing() {
	ctx := s.t.Context()
	for _, object := range []client.Object{class(s.Namespace, firstClass), class(s.Namespace, secondClass), secret(s.Namespace)} {
		s.must(s.Client.Delete(ctx, object))
	}
	s.eventually(func(g gomega.Gomega) {
		vms, err := s.cloud.VMs()
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(vms).To(gomega.BeEmpty(), "VMs")
		for _, list := range []client.ObjectList{
			&v1alpha1.MachineDeploymentList{}, &v1alpha1.MachineSetList{}, &v1alpha1.MachineList{}, &v1alpha1.MachineClassList{}, &corev1.SecretList{},
		} {
			g.Expect(s.Client.List(ctx, list, client.InNamespace(s.Namespace))).To(gomega.Succeed())
			g.Expect(list).To(gomega.HaveField("Items", gomega.BeEmpty()))
		}
		tokens := &corev1.SecretList{}
		g.Expect(s.Target.Client.List(ctx, tokens, client.InNamespace(metav1.NamespaceSystem))).To(gomega.Succeed())
		g.Expect(tokens.Items).To(gomega.BeEmpty(), "bootstrap tokens")
	})
}

// problem matches lines that log errors, in klog's format and in that of "millwright manager".
var problem = regexp.MustCompile(`unknown field|panic|level=ERROR|^[EF]\d{4} `)

// logsNoProblems checks the logs, as the teardown of MCM's suite does.
func (s *suite) logsNoProblems() {
	for name, process := range s.processes {
		process.Stop()
		for line := range strings.Lines(process.Output.String()) {
			if problem.MatchString(line) {
				s.t.Errorf("%s logs %s", name, line)
			}
		}
	}
	s.processes = nil
}
