package cli

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/rollout/change"
	"github.com/millwright-dev/millwright/internal/local/archives"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// revisions creates a MachineDeployment with two revisions, without a manager.
func (w *clusters) revisions(t *testing.T, name string) *v1alpha1.MachineDeployment {
	t.Helper()
	deployment := w.deployment(name, "now", 0)
	w.create(deployment)
	for revision, class := range map[string]string{"1": "before", "2": "now"} {
		set := w.set(name+"-"+class, class, 0)
		set.Spec.Selector, set.Spec.Template.Labels = deployment.Spec.Selector, deployment.Spec.Template.Labels
		set.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: revision}
		set.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(deployment, v1alpha1.SchemeGroupVersion.WithKind("MachineDeployment"))}
		w.create(set)
	}
	return deployment
}

// awaitRollback waits for a rollback request.
func (w *clusters) awaitRollback(t *testing.T, deployment *v1alpha1.MachineDeployment) {
	t.Helper()
	w.soon(t, "the rollback request for "+deployment.Name, func(g gomega.Gomega) {
		g.Expect(w.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment)).To(gomega.Succeed())
		g.Expect(deployment.Spec.RollbackTo).NotTo(gomega.BeNil())
	})
}

// rollout runs a rollout command until the context is canceled, and returns its output.
func (w *clusters) rollout(ctx context.Context, args ...string) (printed string, err error) {
	var out bytes.Buffer
	err = w.rolloutTo(ctx, &out, args...)
	return out.String(), err
}

// rolloutTo is like rollout, but writes the output to a writer.
func (w *clusters) rolloutTo(ctx context.Context, out io.Writer, args ...string) error {
	root := newRoot("test", archives.Set{})
	root.SetOut(out)
	root.SetArgs(append(append([]string{"rollout"}, args...), "--kubeconfig", w.control, "-n", w.Namespace))
	return root.ExecuteContext(ctx)
}

// onWrite is a writer that calls a function on each write.
type onWrite func()

func (do onWrite) Write(p []byte) (int, error) {
	do()
	return len(p), nil
}

// TestRolloutStatus_Interrupted checks that an interrupted watch reports what the rollout waits for.
func TestRolloutStatus_Interrupted(t *testing.T) {
	tier.All(t)
	w := newClusters(t)
	deployment := w.deployment("pool", "now", 1)
	w.create(deployment)
	ctx, cancel := context.WithCancel(t.Context())
	err := w.rolloutTo(ctx, onWrite(cancel), "status", "pool")
	for _, wantText := range []string{"stopped watching; the rollout of machine deployment", "0 of 1 updated", "waiting: the manager has not processed the latest change yet"} {
		if err == nil || !strings.Contains(err.Error(), wantText) {
			t.Errorf("got %v, want %q", err, wantText)
		}
	}
}

// TestRolloutUndo_WithoutManager checks that a rollback request remains if no manager runs, that the error describes how to
// cancel it, and that a restart is rejected until then.
func TestRolloutUndo_WithoutManager(t *testing.T) {
	tier.All(t)
	w := newClusters(t)
	deployment := w.revisions(t, "pool")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := w.rollout(ctx, "undo", "pool")
		ended <- err
	}()
	w.awaitRollback(t, deployment)
	cancel()
	withdraw := "to cancel the rollback, run: kubectl -n " + w.Namespace + " patch machinedeployments.machine.sapcloud.io pool"
	wantText := func(err error, wantText ...string) {
		t.Helper()
		for _, text := range wantText {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("got %v, want %q", err, text)
			}
		}
	}
	wantText(<-ended, "stopped waiting", "to roll back to revision 1", "remains in spec.rollbackTo", withdraw)

	_, err := w.rollout(t.Context(), "undo", "pool", "--timeout", "1ms")
	wantText(err, "check that a manager is running", withdraw)
	_, err = w.rollout(t.Context(), "restart", "pool")
	wantText(err, "cannot be restarted", "a rollback to revision 1 is pending", withdraw)

	before := deployment.DeepCopy()
	deployment.Spec.RollbackTo = nil
	deployment.Spec.Strategy.Type = v1alpha1.InPlaceUpdateMachineDeploymentStrategyType
	if err := w.Client.Patch(t.Context(), deployment, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	_, err = w.rollout(t.Context(), "undo", "pool")
	wantText(err, "cannot be rolled back until its spec is corrected: spec.strategy.inPlaceUpdate")
	if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment); err != nil || deployment.Spec.RollbackTo != nil {
		t.Errorf("spec.rollbackTo is %v, %v", deployment.Spec.RollbackTo, err)
	}
}

// TestRolloutDiff checks that the command shows what "kubectl apply" of a file would change, and that it writes nothing.
func TestRolloutDiff(t *testing.T) {
	tier.All(t)
	w := newClusters(t)
	class := w.class("now", `{"capacity":3}`)
	w.create(class)
	deployment := w.revisions(t, "pool")
	w.machine("pool-now-1", "now", func(m *v1alpha1.Machine) {
		set := &v1alpha1.MachineSet{}
		w.must(w.Client.Get(t.Context(), client.ObjectKey{Namespace: w.Namespace, Name: "pool-now"}, set))
		m.Labels = set.Spec.Template.Labels
		m.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, v1alpha1.SchemeGroupVersion.WithKind("MachineSet"))}
	})
	// kubectl records what was applied, so a field that is missing in the file is removed.
	w.patch(deployment, `{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"metadata\":{\"annotations\":{}},\"spec\":{\"minReadySeconds\":5}}","example.com/by-hand":"yes"}},"spec":{"minReadySeconds":5}}`)
	file := filepath.Join(t.TempDir(), "pool.yaml")
	w.must(os.WriteFile(file, []byte(`
apiVersion: machine.sapcloud.io/v1alpha1
kind: MachineDeployment
metadata: {name: pool}
spec: {template: {spec: {class: {name: before}}}}
---
apiVersion: machine.sapcloud.io/v1alpha1
kind: MachineClass
metadata: {name: now}
providerSpec: {capacity: 5}
---
apiVersion: machine.sapcloud.io/v1alpha1
kind: MachineClass
metadata: {name: later}
providerSpec: {capacity: 5}
---
apiVersion: v1
kind: Secret
metadata: {name: other}
`), 0o600))
	w.must(w.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment))

	message, err := w.rollout(t.Context(), "diff", "pool", "-f", file)
	w.must(err)
	for _, want := range []string{
		"machine class " + w.Namespace + "/now:", "providerSpec.capacity: 3 -> 5", "Existing VMs (1 machine) are not changed.",
		"machine class " + w.Namespace + "/later:\n\nThe class is new: no machine uses it.",
		"machine deployment " + w.Namespace + "/pool:", `spec.template.spec.class.name: "now" -> "before"`, "spec.minReadySeconds: 5 -> (none)",
		"1 machine is replaced, with ", "Revision 1 (machine set pool-before) then becomes current.",
	} {
		if !strings.Contains(message, want) {
			t.Errorf("got\n%s\nwant %q", message, want)
		}
	}
	if strings.Contains(message, "by-hand") {
		t.Errorf("got\n%s\nalthough applying keeps the annotations of other clients", message)
	}
	after := deployment.DeepCopy()
	w.must(w.Client.Get(t.Context(), client.ObjectKeyFromObject(after), after))
	if after.ResourceVersion != deployment.ResourceVersion {
		t.Error("it was changed")
	}
	if message, err := w.rollout(t.Context(), "diff", "pool"); err != nil || !strings.Contains(message, "No machine is replaced.") {
		t.Errorf("without a file: %q, %v", message, err)
	}
	for text, want := range map[string]string{
		"a: [": "not valid YAML", "kind: Secret": "contains neither MachineDeployment pool nor a MachineClass in namespace " + w.Namespace,
		"{apiVersion: machine.sapcloud.io/v1alpha1, kind: MachineDeployment, metadata: {name: pool}, spec: {replicas: many}}": "cannot apply MachineDeployment pool",
	} {
		w.must(os.WriteFile(file, []byte(text), 0o600))
		if _, err := w.rollout(t.Context(), "diff", "pool", "-f", file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// names returns the names of the pool's machines.
func (w *clusters) names(t *testing.T) []string {
	var names []string
	for _, machine := range w.machinesOf(gomega.NewWithT(t), "name", "pool") {
		names = append(names, machine.Name)
	}
	slices.Sort(names)
	return names
}

// wantOutput runs a rollout command, and checks its output or error.
func (w *clusters) wantOutput(t *testing.T, want []string, args ...string) {
	t.Helper()
	message, err := w.rollout(t.Context(), args...)
	if err != nil {
		message += err.Error()
	}
	for _, text := range want {
		if !strings.Contains(message, text) {
			t.Errorf("%q reports %q, want %q", args, message, text)
		}
	}
}

// TestRolloutRestart_OneMachine checks that the new machine is available before the old one is deleted, and that
// running the command again continues an interrupted replacement.
func TestRolloutRestart_OneMachine(t *testing.T) {
	tier.All(t)
	w := newClusters(t)
	w.classes(map[string]string{"now": `{}`})
	deployment := w.deployment("pool", "now", 2)
	deployment.Spec.Strategy = v1alpha1.MachineDeploymentStrategy{
		Type: v1alpha1.RollingUpdateMachineDeploymentStrategyType,
		RollingUpdate: &v1alpha1.RollingUpdateMachineDeployment{UpdateConfiguration: v1alpha1.UpdateConfiguration{
			MaxSurge: ptr.To(intstr.FromInt32(1)), MaxUnavailable: ptr.To(intstr.FromInt32(0)),
		}},
	}
	w.create(deployment)
	stop := w.manage()
	w.wantOutput(t, []string{"successfully rolled out"}, "status", "pool")
	stop()
	old := w.names(t)
	restart := []string{"restart", "pool", "--machine", old[0]}

	w.wantOutput(t, []string{"will be deleted after a new machine is available: 3 machines until then (dry run)"}, append(restart, "--dry-run")...)
	w.wantOutput(t, []string{"will be deleted after a new machine is available: 3 machines until then (server dry run)"}, append(restart, "--dry-run=server")...)
	w.wantOutput(t, []string{"machinedeployment.machine.sapcloud.io/pool restarted (dry run)\n"}, "restart", "pool", "--dry-run")
	w.wantOutput(t, []string{"--timeout requires --machine"}, "restart", "pool", "--timeout=1m")
	if now := w.names(t); !slices.Equal(now, old) {
		t.Errorf("after dry runs, the machines are %q, want %q", now, old)
	}
	ctx, cancel := context.WithCancel(t.Context())
	lines := 0
	err := w.rolloutTo(ctx, onWrite(func() {
		if lines++; lines == 2 { // the first line is the plan, the second one the progress
			cancel()
		}
	}), restart...)
	for _, wantText := range []string{"has not been deleted", "to remove the additional replica, run: kubectl"} {
		if err == nil || !strings.Contains(err.Error(), wantText) {
			t.Errorf("got %v, want %q", err, wantText)
		}
	}
	w.must(w.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment))
	if deployment.Spec.Replicas != 3 {
		t.Fatalf("has %d replicas, want one more", deployment.Spec.Replicas)
	}
	if _, err := w.rollout(t.Context(), append(restart, "--timeout", "1ms")...); err == nil {
		t.Error("the command succeeded without a manager")
	}
	w.wantOutput(t, []string{"is replacing machine " + old[0]}, "restart", "pool", "--machine", old[1])

	w.manage()
	w.wantOutput(t, []string{"machine.machine.sapcloud.io/" + old[0] + " replaced\n"}, restart...)
	w.must(w.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment))
	if _, still := deployment.Annotations[change.AnnotationReplacing]; still || deployment.Spec.Replicas != 2 {
		t.Errorf("left with %d replicas, %v", deployment.Spec.Replicas, deployment.Annotations)
	}
	if now := w.names(t); len(now) != 2 || slices.Contains(now, old[0]) || !slices.Contains(now, old[1]) {
		t.Errorf("the machines are %q; %s is to be replaced, %s to stay", now, old[0], old[1])
	}
}

// TestRolloutFirstChoice_ReplacesFallbackMachines checks that machines of a fallback class are replaced while the preferred class has
// capacity. A new machine without a preferred class is deleted again.
func TestRolloutFirstChoice_ReplacesFallbackMachines(t *testing.T) {
	tier.All(t)
	w := newClusters(t)
	w.classes(map[string]string{"now": `{"capacity":1}`, "second": `{}`})
	deployment := w.deployment("pool", "now", 2)
	deployment.Spec.FallbackClasses = []string{"second"}
	deployment.Spec.Strategy = v1alpha1.MachineDeploymentStrategy{
		Type: v1alpha1.RollingUpdateMachineDeploymentStrategyType,
		RollingUpdate: &v1alpha1.RollingUpdateMachineDeployment{UpdateConfiguration: v1alpha1.UpdateConfiguration{
			MaxSurge: ptr.To(intstr.FromInt32(1)), MaxUnavailable: ptr.To(intstr.FromInt32(0)),
		}},
	}
	w.create(deployment)
	w.manage()
	w.wantOutput(t, []string{"successfully rolled out"}, "status", "pool")
	old, again := w.names(t), []string{"restart", "pool", "--fallen-back"}

	w.wantOutput(t, []string{"are mutually exclusive"}, append(again, "--machine", old[0])...)
	w.wantOutput(t, []string{"of class second would be replaced by one of class now (dry run)"}, append(again, "--dry-run")...)
	w.wantOutput(t, []string{"class now has no capacity: machine", "0 of 1 machine replaced"}, again...)
	if now := w.names(t); !slices.Equal(now, old) {
		t.Fatalf("the machines are %q, want %q", now, old)
	}

	class := w.class("now", "")
	w.must(w.Client.Patch(t.Context(), class, client.RawPatch(types.MergePatchType, []byte(`{"providerSpec":{"capacity":2}}`))))
	w.wantOutput(t, []string{"of class now replaces ", " of class second\n"}, again...)
	w.wantOutput(t, []string{"unchanged: all machines have the class of their first choice"}, again...)
	w.must(w.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment))
	if _, still := deployment.Annotations[change.AnnotationReplacing]; still || deployment.Spec.Replicas != 2 || len(w.names(t)) != 2 {
		t.Errorf("left with %d replicas, %v", deployment.Spec.Replicas, deployment.Annotations)
	}
}
