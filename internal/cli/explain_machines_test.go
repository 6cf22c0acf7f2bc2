package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestExplain_MachineCreation checks the explanations of Machines that cannot be created, for each driver error code.
func TestExplain_MachineCreation(t *testing.T) {
	tier.All(t)
	w := newClusters(t)
	w.manage()
	w.classes(map[string]string{"small": `{}`, "odd": `{"join":"sometimes"}`, "locked": `{}`})
	invalid := w.class("invalid", `{}`)
	invalid.NodeTemplate = &v1alpha1.NodeTemplate{
		InstanceType: "small", Region: "moon", Zone: "sea", Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
	}
	noData := w.secret("no-data")
	noData.Data = nil
	w.create(invalid, w.secret("invalid"), w.class("no-secret", `{}`), noData, w.class("no-data", `{}`))

	byCode := map[codes.Code]string{
		codes.Canceled: "after 1s", codes.Unknown: "after 1s", codes.DeadlineExceeded: "after 1s", codes.NotFound: "after 1s",
		codes.Aborted: "after 1s", codes.Unavailable: "after 1s",
		codes.InvalidArgument: "after 3m", codes.AlreadyExists: "after 3m", codes.PermissionDenied: "after 3m",
		codes.FailedPrecondition: "after 3m", codes.OutOfRange: "after 3m", codes.Unimplemented: "after 3m",
		codes.ResourceExhausted: "every 10m",
		codes.Internal:          "after 5s", codes.DataLoss: "after 5s", codes.Unauthenticated: "after 5s",
	}
	want := map[string]response{}
	for code, again := range byCode {
		name := w.own("code-" + strings.ToLower(code.String()))
		w.cloud.Fail(sim.Fault{Method: sim.CreateMachine, Machine: name, Codes: []codes.Code{code}, Message: "the provider's own words", Times: -1})
		w.machine(name, "small")
		want[name] = response{
			verdict: report.NotRunning, cause: v1alpha1.CauseDriverFailed, code: code.String(),
			next:     again == "every 10m" || again == "after 3m",
			wantText: []string{"is not Running: the provider's own words (" + code.String() + ")", "The manager retries " + again, "becomes Failed unless it is created"},
		}
	}
	notRunning := func(name string, cause report.Cause, code string, wantText ...string) {
		want[name] = response{verdict: report.NotRunning, cause: cause, code: code, wantText: wantText}
	}
	missing := func(class string, wantText ...string) {
		name := w.own("material-" + class)
		w.machine(name, class)
		notRunning(name, v1alpha1.CauseInvalidClassInputs, "", wantText...)
	}
	missing("nowhere", `MachineClass "nowhere" not found in namespace "NS"`, "Create MachineClass nowhere")
	missing("no-secret", `Secret "NS/no-secret" of MachineClass "no-secret" not found`, "Create the secret")
	missing("no-data", `No Secret of MachineClass "no-data" has the key "userData"`, "Add the key")
	missing("invalid", `MachineClass "invalid" is not valid: [nodeTemplate.capacity[gpu]: Required value`)

	odd := w.own("odd")
	w.machine(odd, "odd")
	notRunning(odd, v1alpha1.CauseDriverFailed, "InvalidArgument", "providerSpec.join", "Correct the providerSpec of MachineClass odd")

	raw := w.own("raw")
	w.cloud.Fail(sim.Fault{Method: sim.InitializeMachine, Machine: raw, Codes: []codes.Code{codes.Internal}, Message: "cannot set the source check", Times: -1})
	w.machine(raw, "small")
	notRunning(raw, v1alpha1.CauseDriverFailed, "Internal", "cannot set the source check (Internal)", "after 5s", "; provider ID sim:///NS/raw-NS/")

	hangs := w.own("hangs")
	w.cloud.Fail(sim.Fault{Method: sim.CreateMachine, Machine: hangs, Hang: true, Times: -1})
	w.machine(hangs, "small")
	notRunning(hangs, report.NotStarted, "", "the driver has not returned a result for its VM yet")

	silent := w.own("silent")
	w.cloud.Fail(sim.Fault{Method: sim.CreateMachine, Machine: silent, Hang: true, Times: -1})
	w.machine(silent, "small", within(time.Second, time.Hour))
	notRunning(silent, v1alpha1.CauseCreationTimeout, "", "Failed, since", "The driver has not responded within 1s", "it is not replaced, because no machine set owns it")

	full := w.own("full")
	w.cloud.Fail(sim.Fault{Method: sim.CreateMachine, Machine: full, Codes: []codes.Code{codes.ResourceExhausted}, Message: "zone-1 is full", Times: -1})
	w.machine(full, "small", within(time.Second, time.Hour))
	notRunning(full, v1alpha1.CauseDriverFailed, "ResourceExhausted", "Failed, since", "zone-1 is full (ResourceExhausted)", "Free capacity")

	first, second := w.own("first"), w.own("second")
	w.machine(first, "small")
	owner := w.reaches(t, first, v1alpha1.MachineRunning)
	w.machine(second, "small", func(m *v1alpha1.Machine) { m.Spec.ProviderID = owner.Spec.ProviderID })
	notRunning(second, v1alpha1.CauseInstanceOwned, "", "already belongs to machine", `"first-NS"`)

	for name, response := range want {
		t.Run(strings.TrimSuffix(name, "-"+w.Namespace), func(t *testing.T) { w.asks(t, "machine", name, response) })
	}
}

// TestExplain_MachineWithoutReadyNode checks the explanations of Machines that have a VM but are not Running.
func TestExplain_MachineWithoutReadyNode(t *testing.T) {
	tier.All(t)
	w := newClusters(t)
	w.manage()
	w.classes(map[string]string{
		"small": `{}`, "never": `{"join":"never"}`, "unready": `{"join":"notReady"}`,
		"bare": `{"nodeTaints":[{"key":"` + v1alpha1.TaintKeyCriticalComponentsNotReady + `","effect":"NoSchedule"}]}`,
	})
	want := map[string]response{}
	expect := func(name string, verdict report.Verdict, cause report.Cause, wantText ...string) string {
		want[w.own(name)] = response{verdict: verdict, cause: cause, next: cause == report.NodeNotJoined, wantText: wantText}
		return w.own(name)
	}
	w.machine(expect("runs", report.Healthy, "", "is Running."), "small")
	w.machine(expect("never", report.NotRunning, report.NodeNotJoined, `node "never-NS" has not joined`, "becomes Failed unless its node is ready before then: the timeout is 20m"), "never")
	w.machine(expect("unready", report.NotRunning, v1alpha1.CauseNodeUnhealthy, "Ready is False (KubeletNotReady)"), "unready")
	w.machine(expect("bare", report.NotRunning, report.CriticalComponentsNotReady, "critical components on the node are not ready"), "bare")
	w.machine(expect("late", report.NotRunning, v1alpha1.CauseCreationTimeout, "failed to join the cluster in", "Failed, since", "it is not replaced"), "never", within(time.Second, time.Hour))
	w.machine(expect("lost", report.NotRunning, v1alpha1.CauseInstanceLost, "VM sim:///NS/lost-NS/1-gone no longer exists", "Unknown, since", "becomes Failed unless its node is healthy"), "small",
		func(m *v1alpha1.Machine) { m.Spec.ProviderID = "sim:///" + w.Namespace + "/" + m.Name + "/1-gone" })

	sick := expect("sick", report.NotRunning, v1alpha1.CauseNodeUnhealthy, "Unknown, since", "Ready is Unknown", "The kubelet of node sick-NS does not report", "the timeout is 10m")
	dead := expect("dead", report.NotRunning, v1alpha1.CauseHealthTimeout, "Failed, since", "health checks failing since last 1s", "Ready is Unknown")
	w.machine(sick, "small")
	w.machine(dead, "small", within(time.Hour, time.Second), inPool("dead"))
	pool := []string{w.own("pool-1"), w.own("pool-2")}
	for _, name := range pool {
		w.machine(name, "small", within(time.Hour, time.Second), inPool("pool"))
	}
	for _, name := range append(pool, sick, dead) {
		w.reaches(t, name, v1alpha1.MachineRunning)
		w.turns(name, corev1.ConditionUnknown)
	}
	for name, response := range want {
		t.Run(strings.TrimSuffix(name, "-"+w.Namespace), func(t *testing.T) { w.asks(t, "machine", name, response) })
	}
	t.Run("delayed", func(t *testing.T) {
		delayed := ""
		w.soon(t, "one of the pool is given up, and the other is not", func(g gomega.Gomega) {
			phases := map[v1alpha1.MachinePhase]string{}
			for _, m := range w.machinesOf(g, v1alpha1.LabelKeyName, "pool") {
				phases[m.Status.CurrentStatus.Phase] = m.Name
			}
			g.Expect(phases).To(gomega.HaveKey(v1alpha1.MachineFailed))
			delayed = phases[v1alpha1.MachineUnknown]
			g.Expect(delayed).NotTo(gomega.BeEmpty())
		})
		w.asks(t, "machine", delayed, response{
			verdict: report.NotRunning, cause: v1alpha1.CauseNodeUnhealthy,
			wantText: []string{`because other machines of "pool" are being replaced`, "It becomes Failed after the other machines are replaced"},
		})
	})
}

// inPool adds a Machine to a pool.
func inPool(name string) func(*v1alpha1.Machine) {
	return func(m *v1alpha1.Machine) { m.Labels = map[string]string{v1alpha1.LabelKeyName: name} }
}

// turns changes the status of a machine's node.
func (w *clusters) turns(machine string, ready corev1.ConditionStatus) {
	w.t.Helper()
	if n, err := w.cloud.SetNodeReady(machine, ready); err != nil || n != 1 {
		w.t.Fatalf("the nodes of %d machines %s change, err %v", n, machine, err)
	}
}

// TestExplain_MachineDeletion checks the explanations of delayed deletions.
func TestExplain_MachineDeletion(t *testing.T) {
	tier.All(t)
	w := newClusters(t)
	w.manage()
	w.classes(map[string]string{"small": `{}`, "slow": `{"deleteDelay":"1h"}`, "lost": `{}`, "bare": `{}`})
	want := map[string]response{}
	// deletes describes a Machine that is deleted after it is Running and has the given objects.
	deletes := func(name, class string, given func(node string), cause report.Cause, code string, wantText ...string) {
		name = w.own(name)
		want[name] = response{verdict: report.Deleting, cause: cause, code: code, wantText: wantText}
		w.machine(name, class)
		w.reaches(t, name, v1alpha1.MachineRunning)
		if given != nil {
			given(name)
		}
		if err := w.Client.Delete(t.Context(), &v1alpha1.Machine{ObjectMeta: w.meta(name)}); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
	}
	terminated := []string{"At ", "the drain timeout is 2h", "kubectl -n NS label machines.machine.sapcloud.io"}

	deletes("budget", "small", func(node string) {
		w.join(w.pod("busy", node), w.budget("busy", policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, ExpectedPods: 3, CurrentHealthy: 2, DesiredHealthy: 2}))
	}, report.DisruptionBudget, "", append(terminated, "/busy: it does not allow the eviction of pod", "at the moment: 2 of 3 pods are healthy, 2 required", "the manager reports: Draining, waiting for pod disruption budget")...)
	deletes("never", "small", func(node string) {
		w.join(w.pod("never", node), w.budget("never", policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, ExpectedPods: 2, CurrentHealthy: 2, DesiredHealthy: 2}))
	}, report.DisruptionBudgetForbids, "", append(terminated, "it never allows the eviction of pod", "all 2 pods are healthy, 2 required", "is misconfigured and requires zero voluntary evictions", "allow one unavailable pod")...)
	deletes("twice", "small", func(node string) {
		w.join(w.pod("twice", node), w.budget("twice", policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: 1}))
		other := w.budget("twice", policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: 1})
		other.Name = "twice-more"
		w.join(other)
	}, report.DisruptionBudgetForbids, "", append(terminated, "2 pod disruption budgets cover it")...)
	deletes("ends", "small", func(node string) { w.join(w.pod("ends", node)) },
		report.PodTerminating, "", append(terminated, "it is terminating, and may take until", "the manager reports: Draining, waiting for pod")...)
	deletes("stuck", "small", func(node string) {
		pod := w.pod("stuck", node)
		pod.Finalizers, pod.Spec.TerminationGracePeriodSeconds = []string{"example.com/backup"}, ptr.To[int64](0)
		w.join(pod)
	}, report.PodStuck, "", append(terminated, "it is not deleted because of its finalizers: example.com/backup")...)
	deletes("disk", "small", w.disk, report.VolumeAttached, "", append(terminated, "is attached to the node", "the manager reports: Draining, waiting for volume pv-NS")...)

	w.cloud.Fail(sim.Fault{Method: sim.DeleteMachine, Machine: w.own("denied"), Codes: []codes.Code{codes.PermissionDenied}, Message: "not allowed to delete it", Times: -1})
	deletes("denied", "small", nil, v1alpha1.CauseDriverFailed, "PermissionDenied", "is being deleted: not allowed to delete it (PermissionDenied)", "The manager retries after 3m", "Correct the credentials", "at the earliest: The manager")
	w.cloud.Fail(sim.Fault{Method: sim.DeleteMachine, Machine: w.own("hangs"), Hang: true, Times: -1})
	deletes("hangs", "small", nil, v1alpha1.CauseInstanceExists, "", "the provider is deleting VM sim:///NS/hangs-NS/")
	deletes("slow", "slow", nil, v1alpha1.CauseInstanceExists, "", "was asked to delete VM sim:///NS/slow-NS/", "but the VM still exists")
	deletes("held", "small", func(node string) {
		w.patch(&v1alpha1.Machine{ObjectMeta: w.meta(node)}, `{"metadata":{"finalizers":["`+v1alpha1.FinalizerMCM+`","example.com/inventory"]}}`)
	}, report.Finalizer, "", "finalizer example.com/inventory delays the deletion of the machine")
	deletes("lost", "lost", func(string) {
		class := &v1alpha1.MachineClass{ObjectMeta: w.meta("lost")}
		if err := w.Client.Delete(t.Context(), class); err != nil {
			t.Fatal(err)
		}
		w.patch(class, `{"metadata":{"finalizers":null}}`)
		w.gone(t, class)
	}, v1alpha1.CauseInvalidClassInputs, "", "VM sim:///NS/lost-NS/", `cannot be deleted: MachineClass "lost" not found`, "Do not remove the finalizer manually")

	// Two Machines refer to the same VM.
	first, second := w.own("claims"), w.own("claims-too")
	w.machine(first, "small")
	owner := w.reaches(t, first, v1alpha1.MachineRunning)
	w.machine(second, "small", func(m *v1alpha1.Machine) {
		m.Spec.ProviderID, m.Finalizers = owner.Spec.ProviderID, []string{v1alpha1.FinalizerMCM}
	})
	if err := w.Client.Delete(t.Context(), &v1alpha1.Machine{ObjectMeta: w.meta(second)}); err != nil {
		t.Fatal(err)
	}
	want[second] = response{verdict: report.Deleting, cause: v1alpha1.CauseInstanceShared, wantText: []string{"also belongs to machine", "clear spec.providerID"}}

	for name, response := range want {
		t.Run(strings.TrimSuffix(name, "-"+w.Namespace), func(t *testing.T) { w.asks(t, "machine", name, response) })
	}
	t.Run("forced", func(t *testing.T) {
		name := w.own("never")
		w.patch(&v1alpha1.Machine{ObjectMeta: w.meta(name)}, `{"metadata":{"labels":{"`+v1alpha1.LabelKeyForceDeletion+`":"True"}}}`)
		w.gone(t, &v1alpha1.Machine{ObjectMeta: w.meta(name)})
		w.asks(t, "machine", name, response{verdict: report.Gone, cause: report.Unexplained, wantText: []string{"ForcedDrain: The drain of node never-NS was forced"}})
	})
}

// pod returns a Pod on a node, with a label that a disruption budget selects.
func (w *clusters) pod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Target.Namespace, Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

func (w *clusters) budget(app string, status policyv1.PodDisruptionBudgetStatus) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Target.Namespace, Name: app},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		Status:     status,
	}
}

// disk creates a Pod with a volume on a node. The Pod terminates immediately, and the volume stays attached.
func (w *clusters) disk(node string) {
	w.t.Helper()
	pv := w.own("pv")
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Target.Namespace, Name: "disk"},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: pv, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To(""),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: pv},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: claim.Spec.Resources.Requests, AccessModes: claim.Spec.AccessModes,
			ClaimRef:               &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: pv}},
		},
	}
	pod := w.pod("disk", node)
	pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](0)
	pod.Spec.Volumes = []corev1.Volume{{Name: "disk", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name}}}}
	w.join(claim, volume, pod, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: w.own("attachment")},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: "csi.example.com", NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
		Status:     storagev1.VolumeAttachmentStatus{Attached: true},
	})
	attached := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	status := `{"status":{"volumesAttached":[{"name":"kubernetes.io/csi/csi.example.com^` + pv + `","devicePath":""}]}}`
	if err := w.Target.Client.Status().Patch(w.t.Context(), attached, client.RawPatch("application/merge-patch+json", []byte(status))); err != nil {
		w.t.Fatal(err)
	}
}

// TestExplain_DeletedMachine checks the reasons for the deletion of Machines that are gone.
func TestExplain_DeletedMachine(t *testing.T) {
	tier.All(t)
	w := newClusters(t)
	w.manage()
	w.classes(map[string]string{"small": `{}`, "never": `{"join":"never"}`, "full": `{"capacity":1}`, "next": `{}`})
	gone := func(cause report.Cause, wantText ...string) response {
		return response{verdict: report.Gone, cause: cause, wantText: wantText}
	}
	create := func(t *testing.T, set *v1alpha1.MachineSet) *v1alpha1.Machine {
		w.create(set)
		return w.only(t, "pool", set.Name)
	}
	t.Run("never joined", func(t *testing.T) {
		set := w.set("late", "never", 1)
		set.Spec.Template.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{MachineCreationTimeout: &metav1.Duration{Duration: 2 * time.Second}}
		machine := create(t, set)
		w.gone(t, machine)
		w.asks(t, "machine", machine.Name, gone(v1alpha1.CauseMachineFailed, "no longer exists: machine set late deleted it because it failed: Machine late-", "failed to join the cluster in", "set late ("))
	})
	t.Run("never created", func(t *testing.T) {
		w.create(w.set("roomy", "full", 1))
		set := w.set("full", "full", 1)
		set.Spec.Template.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{MachineCreationTimeout: &metav1.Duration{Duration: 2 * time.Second}}
		w.reaches(t, w.only(t, "pool", "roomy").Name, v1alpha1.MachineRunning)
		machine := create(t, set)
		w.gone(t, machine)
		w.asks(t, "machine", machine.Name, gone(v1alpha1.CauseMachineFailed, "because it failed: Cloud provider message - machine codes error: code = [ResourceExhausted]"))
	})
	t.Run("unhealthy", func(t *testing.T) {
		set := w.set("sick", "small", 1)
		set.Spec.Template.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{MachineHealthTimeout: &metav1.Duration{Duration: time.Second}}
		machine := create(t, set)
		w.reaches(t, machine.Name, v1alpha1.MachineRunning)
		w.turns(machine.Name, corev1.ConditionUnknown)
		w.gone(t, machine)
		w.asks(t, "machine", machine.Name, gone(v1alpha1.CauseMachineFailed, "health checks failing since last 1s", "Ready=Unknown"))
	})
	t.Run("named by an autoscaler", func(t *testing.T) {
		deployment := w.deployment("named", "small", 1)
		w.create(deployment)
		machine := w.only(t, "name", "named")
		w.reaches(t, machine.Name, v1alpha1.MachineRunning)
		now := time.Now().UTC().Format(time.RFC3339)
		w.patch(deployment, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationKeyTriggerDeletion+`":"`+machine.Name+"~"+now+
			`","`+v1alpha1.AnnotationKeyLastReplicaChange+`":"`+now+`"}},"spec":{"replicas":0}}`)
		w.gone(t, machine)
		w.asks(t, "machine", machine.Name, gone(v1alpha1.CauseNamedForDeletion, "selected by name, usually by an autoscaler: Machine named-"))
	})
	t.Run("scaled down", func(t *testing.T) {
		set := w.set("less", "small", 1)
		machine := create(t, set)
		w.patch(set, `{"spec":{"replicas":0}}`)
		w.gone(t, machine)
		w.asks(t, "machine", machine.Name, gone(v1alpha1.CauseSurplus, "1 surplus machine, 0 desired"))
	})
	t.Run("rolled out", func(t *testing.T) {
		deployment := w.deployment("rolls", "small", 1)
		w.create(deployment)
		machine := w.only(t, "name", "rolls")
		w.reaches(t, machine.Name, v1alpha1.MachineRunning)
		w.patch(deployment, `{"spec":{"template":{"spec":{"class":{"name":"next"}}}}}`)
		w.gone(t, machine)
		w.asks(t, "machine", machine.Name, gone(v1alpha1.CauseSurplus, "surplus machine", "MachineDeployment rolls: Scaled down machine set rolls-"))
	})
	t.Run("set deleted", func(t *testing.T) {
		set := w.set("whole", "small", 1)
		machine := create(t, set)
		if err := w.Client.Delete(t.Context(), set); err != nil {
			t.Fatal(err)
		}
		w.gone(t, machine)
		w.asks(t, "machine", machine.Name, gone(v1alpha1.CauseOwnerDeleted, "the machine set is being deleted"))
	})
	t.Run("node deleted", func(t *testing.T) {
		machine := create(t, w.set("node", "small", 1))
		w.reaches(t, machine.Name, v1alpha1.MachineRunning)
		if err := w.Target.Client.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: machine.Name}}); err != nil {
			t.Fatal(err)
		}
		w.gone(t, machine)
		w.asks(t, "machine", machine.Name, gone(v1alpha1.CauseNodeDeleted, "was deleted; deleting the machine, too"))
	})
	t.Run("deleted by hand", func(t *testing.T) {
		machine := create(t, w.set("hand", "small", 1))
		w.reaches(t, machine.Name, v1alpha1.MachineRunning)
		if err := w.Client.Delete(t.Context(), machine); err != nil {
			t.Fatal(err)
		}
		w.gone(t, machine)
		w.asks(t, "machine", machine.Name, gone(report.Unexplained, "Deleted: VM sim:///NS/"))
	})
	t.Run("never was", func(t *testing.T) {
		status, _, errs := w.run("machine", "nothing")
		gomega.NewWithT(t).Expect(status).To(gomega.Equal(1))
		gomega.NewWithT(t).Expect(errs).To(gomega.ContainSubstring("does not exist, and no events mention it"))
	})
}

// TestExplain_WorksWithoutManager checks that the command works without a running manager, and reports that none is
// running.
func TestExplain_WorksWithoutManager(t *testing.T) {
	tier.All(t)
	w := newClusters(t)
	stop := w.manage(elected)
	w.classes(map[string]string{"small": `{}`, "never": `{"join":"never"}`})
	never, denied := w.own("never"), w.own("denied")
	w.cloud.Fail(sim.Fault{Method: sim.DeleteMachine, Machine: denied, Codes: []codes.Code{codes.PermissionDenied}, Message: "not allowed", Times: -1})
	w.machine(never, "never")
	w.machine(denied, "small")
	w.reaches(t, denied, v1alpha1.MachineRunning)
	if err := w.Client.Delete(t.Context(), &v1alpha1.Machine{ObjectMeta: w.meta(denied)}); err != nil {
		t.Fatal(err)
	}
	joining := response{verdict: report.NotRunning, cause: report.NodeNotJoined, next: true, wantText: []string{"has not joined"}}
	deleting := response{verdict: report.Deleting, cause: v1alpha1.CauseDriverFailed, code: "PermissionDenied", wantText: []string{"not allowed (PermissionDenied)"}}
	both := func(joining, deleting response) {
		t.Helper()
		w.asks(t, "machine", never, joining)
		w.asks(t, "machine", denied, deleting)
	}
	both(joining, deleting)
	stop()
	none := func(a response) response {
		a.cause, a.code, a.next = report.ManagerNotRunning, "", false
		a.wantText = append([]string{"no manager handles the machines of this namespace"}, a.wantText...)
		return a
	}
	both(none(joining), none(deleting))
	w.manage(elected)
	both(joining, deleting)
}

// TestExplain_NoNodeExpectedWithoutTarget checks that no node is expected without a target cluster.
func TestExplain_NoNodeExpectedWithoutTarget(t *testing.T) {
	tier.All(t)
	w := newClusters(t)
	w.manage(func(config *manager.Config) { config.Target = nil })
	w.classes(map[string]string{"small": `{}`})
	w.machine(w.own("alone"), "small")
	w.asks(t, "machine", w.own("alone"), response{verdict: report.Healthy, wantText: []string{"is Available; no target cluster is configured"}}, "--target-kubeconfig", "none")
}
