package cli

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestExplain_MachineSet checks why a MachineSet does not have its desired replicas, for states that the real
// controllers produce.
func TestExplain_MachineSet(t *testing.T) {
	tier.All(t)
	w := newClusters(t)
	w.manage()
	w.classes(map[string]string{"small": `{}`, "never": `{"join":"never"}`, "full": `{"capacity":1}`, "slow": `{"deleteDelay":"1h"}`})
	incomplete := func(cause report.Cause, wantText ...string) response {
		return response{verdict: report.Incomplete, cause: cause, wantText: wantText}
	}
	want := map[string]response{}
	add := func(set *v1alpha1.MachineSet, a response) {
		w.create(set)
		want[set.Name] = a
	}
	add(w.set("well", "small", 2), response{verdict: report.Healthy, wantText: []string{"MachineSet NS/well has all 2 desired machines.", "2 desired; 2 exist, 2 ready, 2 available; class small"}})
	add(w.set("none", "small", 0), response{verdict: report.Healthy, wantText: []string{"needs no machines and has none"}})
	full := incomplete(v1alpha1.CauseDriverFailed, "has 1 of 3 machines available", "2 machines are not Running, including Machine full-", "(ResourceExhausted)", "Free capacity")
	full.code = "ResourceExhausted"
	add(w.set("full", "full", 3), full)
	add(w.set("never", "never", 1), incomplete(report.NodeNotJoined, "Machine never-", "has not joined", "millwright explain machine -n NS never-"))
	add(w.set("nowhere", "nowhere", 1), incomplete(v1alpha1.CauseInvalidClassInputs, `MachineClass "nowhere" not found`))
	ripe := w.set("ripe", "small", 1)
	ripe.Spec.MinReadySeconds = 3600
	ripening := incomplete(report.MinReadySeconds, "must stay ready for 1h to become available")
	ripening.next = true
	add(ripe, ripening)
	failing := w.set("failing", "never", 1)
	failing.Spec.Template.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{MachineCreationTimeout: &metav1.Duration{Duration: time.Second}}
	waits := incomplete(report.BackOff, "Machines failed before they joined,", "times in a row; last failure: failing-", "failed to join the cluster in", "Check why machines do not join", "The next machines are created; immediately if the class")
	waits.next = true
	add(failing, waits)
	off := w.set("off", "small", 1)
	off.Labels = map[string]string{v1alpha1.LabelKeyMachineSetScaleUpDisabled: "true"}
	add(off, incomplete(report.ScaleUpDisabled, "0 exist", "it creates no machines"))
	bad := w.set("bad", "small", 1)
	bad.Spec.Template.Labels = map[string]string{"pool": "other"}
	add(bad, incomplete(v1alpha1.CauseInvalidSpec, "spec.template.metadata.labels", "Correct the field"))
	one, two := w.set("one", "small", 1), w.set("two", "small", 1)
	two.Spec.Selector, two.Spec.Template.Labels = one.Spec.Selector, one.Spec.Template.Labels
	add(one, response{verdict: report.Healthy, cause: report.SelectorOverlap, wantText: []string{"has its desired machine, but spec.selector: the same machines are selected by two. Give each set a unique label.", "SelectorOverlap"}})
	add(two, response{verdict: report.Healthy, cause: report.SelectorOverlap, wantText: []string{"selected by one"}})
	all := w.set("all", "small", 1)
	all.Spec.Selector = &metav1.LabelSelector{}
	add(all, incomplete(v1alpha1.CauseInvalidSpec, "spec.selector", "must not match every machine"))

	leaving := w.set("leaving", "slow", 1)
	w.create(leaving)
	w.reaches(t, w.only(t, "pool", "leaving").Name, v1alpha1.MachineRunning)
	if err := w.Client.Delete(t.Context(), leaving); err != nil {
		t.Fatal(err)
	}
	want["leaving"] = response{verdict: report.Deleting, cause: v1alpha1.CauseInstanceExists, wantText: []string{"is being deleted, and waits for 1 machine", "but the VM still exists", "1 more being deleted"}}

	for name, response := range want {
		t.Run(name, func(t *testing.T) { w.asks(t, "machineset", name, response) })
	}
	t.Run("gone", func(t *testing.T) {
		set := w.set("past", "small", 1)
		w.create(set)
		w.only(t, "pool", "past")
		if err := w.Client.Delete(t.Context(), set); err != nil {
			t.Fatal(err)
		}
		w.gone(t, set)
		w.asks(t, "machineset", "past", response{verdict: report.Gone, wantText: []string{"no longer exists", "the machine set is being deleted"}})
	})
	t.Run("mistyped", func(t *testing.T) {
		status, _, errs := w.run("machineset", "wel")
		if status != 1 {
			t.Errorf("exit status %d", status)
		}
		gomega.NewWithT(t).Expect(errs).To(gomega.ContainSubstring("Did you mean well?"))
	})
}

// TestExplain_FrozenMachineSet checks that a MachineSet frozen because of too many Machines creates none, and that all
// explanations mention it.
func TestExplain_FrozenMachineSet(t *testing.T) {
	tier.All(t)
	w := newClusters(t)
	w.classes(map[string]string{"never": `{"join":"never"}`})
	for _, name := range []string{"overfull-1", "overfull-2", "overfull-3"} {
		w.machine(w.own(name), "never", func(m *v1alpha1.Machine) { m.Labels = map[string]string{"pool": "overfull"} })
	}
	w.create(w.set("overfull", "never", 1))
	// The MachineSet is frozen at twice the desired replicas, and unfrozen only at zero. The manager starts after
	// all Machines exist.
	w.manage(func(config *manager.Config) { config.Overshoot = scale.Overshoot{Up: 0, Down: 1000} })
	why := "it is frozen and creates no machines: 3 machines exist, at least the freeze limit of 2"
	w.asks(t, "machineset", "overfull", response{verdict: report.Incomplete, cause: report.Frozen, wantText: []string{"1 desired; 1 exist", why, "FrozeMachineSet", v1alpha1.AnnotationKeyUnfreeze}})
	w.asks(t, "machine", w.only(t, "pool", "overfull").Name, response{
		verdict: report.NotRunning, cause: report.NodeNotJoined,
		wantText: []string{"MachineSet overfull: Frozen: 3 machines exist", "creates a replacement when the set is no longer frozen"},
	})

	deployment := w.deployment("pool", "never", 1) // the limit is 2, including the surge
	w.create(deployment)
	set := w.setOf(t, "pool")
	for _, name := range []string{"pool-1", "pool-2"} {
		w.machine(w.own(name), "never", func(m *v1alpha1.Machine) { m.Labels = set.Spec.Template.Labels })
	}
	w.asks(t, "machinedeployment", "pool", response{
		verdict: report.Incomplete, cause: report.Frozen,
		wantText: []string{"MachineSet " + set.Name + ": it is frozen", "kubectl -n NS annotate machinedeployments.machine.sapcloud.io pool " + v1alpha1.AnnotationKeyUnfreeze + "="},
	})
}

// setOf waits for the only MachineSet of a MachineDeployment.
func (w *clusters) setOf(t *testing.T, deployment string) *v1alpha1.MachineSet {
	t.Helper()
	sets := &v1alpha1.MachineSetList{}
	w.soon(t, "there is one set of "+deployment, func(g gomega.Gomega) {
		g.Expect(w.Client.List(t.Context(), sets, client.InNamespace(w.Namespace), client.MatchingLabels{"name": deployment})).To(gomega.Succeed())
		g.Expect(sets.Items).To(gomega.HaveLen(1))
	})
	return &sets.Items[0]
}

// TestExplain_MachineDeployment checks why a MachineDeployment does not have its desired replicas, for states that the
// real controllers produce.
func TestExplain_MachineDeployment(t *testing.T) {
	tier.All(t)
	w := newClusters(t)
	w.manage()
	w.classes(map[string]string{"small": `{}`, "never": `{"join":"never"}`, "slow": `{"deleteDelay":"1h"}`})
	want := map[string]response{}
	expect := func(name string, verdict report.Verdict, cause report.Cause, wantText ...string) {
		want[name] = response{verdict: verdict, cause: cause, wantText: wantText}
	}
	// rolled returns a MachineDeployment whose new template never becomes available.
	rolled := func(name string, change func(*v1alpha1.MachineDeployment)) {
		d := w.deployment(name, "small", 2)
		d.Spec.Strategy = v1alpha1.MachineDeploymentStrategy{
			Type: v1alpha1.RollingUpdateMachineDeploymentStrategyType,
			RollingUpdate: &v1alpha1.RollingUpdateMachineDeployment{UpdateConfiguration: v1alpha1.UpdateConfiguration{
				MaxSurge: ptr.To(intstr.FromInt32(1)), MaxUnavailable: ptr.To(intstr.FromInt32(0)),
			}},
		}
		if change != nil {
			change(d)
		}
		w.create(d)
		w.asks(t, "machinedeployment", name, response{verdict: report.Healthy, wantText: []string{"has all 2 desired machines.", "2 desired; 2 exist, 2 of the latest template, 2 ready, 2 available; class small"}})
		w.patch(d, `{"spec":{"template":{"spec":{"class":{"name":"never"}}}}}`)
	}
	rolled("rolls", nil)
	expect("rolls", report.Incomplete, report.NodeNotJoined, "(1 of 3 has the latest template)", "2 machines of rolls-", "(revision 1) are still to be replaced; maxSurge is 1, maxUnavailable 0", "has not joined", "(revision 2): 1 desired, 1 exist, 0 available")
	rolled("stalls", func(d *v1alpha1.MachineDeployment) { d.Spec.ProgressDeadlineSeconds = ptr.To[int32](2) })
	expect("stalls", report.Incomplete, report.NodeNotJoined, "has timed out progressing. There was no progress for 2s", "has not joined")
	rolled("in-place", func(d *v1alpha1.MachineDeployment) {
		d.Spec.Strategy = v1alpha1.MachineDeploymentStrategy{
			Type:          v1alpha1.InPlaceUpdateMachineDeploymentStrategyType,
			InPlaceUpdate: &v1alpha1.InPlaceUpdateMachineDeployment{OrchestrationType: v1alpha1.OrchestrationTypeManual},
		}
	})
	expect("in-place", report.Incomplete, report.InPlaceUpdate, "is progressing, but machine in-place-", "its node is not selected", "Label the nodes to update with "+v1alpha1.LabelKeyNodeSelectedForUpdate+"=true",
		"2 machines of in-place-", "are still to be updated in place", "orchestrationType Manual", "millwright explain machine -n NS NAME")
	paused := w.deployment("paused", "small", 1)
	paused.Spec.Paused = true
	w.create(paused)
	expect("paused", report.Incomplete, report.Paused, "the deployment is paused: it is scaled, but machines with another template are not created", "To resume: millwright rollout resume paused -n NS")

	bad := w.deployment("bad", "small", 1)
	bad.Spec.Template.Labels = map[string]string{"name": "other"}
	duplicate := w.deployment("duplicate", "small", 1)
	other := w.deployment("other", "small", 1)
	other.Spec.Selector, other.Spec.Template.Labels = duplicate.Spec.Selector, duplicate.Spec.Template.Labels
	w.create(bad, duplicate, other)
	expect("bad", report.Incomplete, v1alpha1.CauseInvalidSpec, "spec.template.metadata.labels")
	expect("duplicate", report.Healthy, report.SelectorOverlap, "has its desired machine, but spec.selector: the same machines are selected by other")

	off := w.deployment("off", "small", 1)
	w.create(off)
	w.asks(t, "machinedeployment", "off", response{verdict: report.Healthy})
	w.patch(w.setOf(t, "off"), `{"metadata":{"labels":{"`+v1alpha1.LabelKeyMachineSetScaleUpDisabled+`":"true"}}}`)
	w.patch(off, `{"spec":{"replicas":2}}`)
	expect("off", report.Incomplete, report.ScaleUpDisabled, "has 1 of 2 machines available: MachineSet off-")

	renamed := w.deployment("renamed", "small", 1)
	back := w.deployment("back", "small", 1)
	w.create(renamed, back)
	for _, name := range []string{"renamed", "back"} {
		w.asks(t, "machinedeployment", name, response{verdict: report.Healthy})
	}
	w.patch(renamed, `{"spec":{"selector":{"matchLabels":{"name":"new-name"}},"template":{"metadata":{"labels":{"name":"new-name"}}}}}`)
	expect("renamed", report.Healthy, report.SetReleased, "has its desired machine, but spec.selector: no longer matches machine sets of this deployment: renamed-", "(machines: 1)", "kubectl -n NS delete machinesets.machine.sapcloud.io NAME", "change spec.selector so that it matches")
	w.patch(back, `{"spec":{"rollbackTo":{"revision":77}}}`)
	expect("back", report.Healthy, report.RollbackRefused, "has its desired machine, but spec.rollbackTo.revision: no machine set has revision 77; the template remains that of revision 1.", "millwright rollout history back -n NS")

	for name, response := range want {
		t.Run(name, func(t *testing.T) { w.asks(t, "machinedeployment", name, response) })
	}
	t.Run("is deleted", func(t *testing.T) { w.deletes(t, w.deployment("leaving", "slow", 2)) })
	t.Run("is held", func(t *testing.T) {
		held := w.deployment("held", "small", 1)
		held.Finalizers = []string{"example.com/backup"}
		w.create(held)
		w.asks(t, "machinedeployment", "held", response{verdict: report.Healthy})
		if err := w.Client.Delete(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		w.asks(t, "machinedeployment", "held", response{
			verdict: report.Deleting, cause: report.Finalizer,
			wantText: []string{"is being deleted: finalizer example.com/backup delays the deletion of the deployment", "1 desired; 0 exist", "Contact the owner of finalizer example.com/backup"},
		})
		w.counts(t, held, 0)
		w.patch(held, `{"metadata":{"finalizers":null}}`)
	})
	t.Run("selects all", func(t *testing.T) { // runs last, because it overlaps with all others
		all := w.deployment("all", "small", 1)
		all.Spec.Selector = &metav1.LabelSelector{}
		w.create(all)
		w.asks(t, "machinedeployment", "all", response{verdict: report.Incomplete, cause: v1alpha1.CauseInvalidSpec, wantText: []string{"the empty selector selects all machines"}})
	})
	t.Run("short name", func(t *testing.T) {
		status, out, errs := w.run("mcd", "rolls", "-o", "json")
		report := report.Report{}
		if err := json.Unmarshal([]byte(out), &report); status != 0 || err != nil {
			t.Fatalf("exit status %d, %v: %s", status, err, errs)
		}
		if pool := report.Pool; report.MachineDeployment != "rolls" || report.Machine != "" || pool == nil || len(pool.Sets) != 2 {
			t.Errorf("got %s", out)
		}
	})
}

// deletes deletes a MachineDeployment in the foreground. Its Machines never finish their deletion.
func (w *clusters) deletes(t *testing.T, deployment *v1alpha1.MachineDeployment) {
	w.create(deployment)
	w.asks(t, "machinedeployment", deployment.Name, response{verdict: report.Healthy})
	if err := w.Client.Delete(t.Context(), deployment, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		t.Fatal(err)
	}
	w.asks(t, "machinedeployment", deployment.Name, response{
		verdict: report.Deleting, cause: v1alpha1.CauseInstanceExists,
		wantText: []string{"is being deleted, and waits for 2 machines: 2 machines are being deleted, including Machine leaving-", "but the VM still exists", "2 more being deleted"},
	})
	w.counts(t, deployment, deployment.Spec.Replicas)
}

// counts waits until the status of a deleted MachineDeployment reports the number of remaining Machines, none of
// which are available.
func (w *clusters) counts(t *testing.T, deployment *v1alpha1.MachineDeployment, left int32) {
	t.Helper()
	w.soon(t, "the status counts down", func(g gomega.Gomega) {
		g.Expect(w.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment)).To(gomega.Succeed())
		status := deployment.Status
		g.Expect([]int32{status.Replicas, status.ReadyReplicas, status.AvailableReplicas, status.UnavailableReplicas}).To(gomega.Equal([]int32{left, 0, 0, left}))
		g.Expect(status.ObservedGeneration).To(gomega.Equal(deployment.Generation))
	})
}
