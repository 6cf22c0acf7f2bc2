package ui

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/browser"
)

// everything returns objects with which each page shows all of its parts: a rollout, a machine in each phase, alone and
// in a set, events, virtual machines that run, migrate and failed to migrate, and hosts.
func everything() []client.Object {
	objects := onePool()
	deployment, set, like := objects[0].(*v1alpha1.MachineDeployment), objects[1].(*v1alpha1.MachineSet), objects[3].(*v1alpha1.Machine)
	old := set.DeepCopy()
	old.Name, old.UID, old.Annotations = "pool-0", "pool-0", map[string]string{v1alpha1.AnnotationKeyRevision: "0", "kubernetes.io/change-cause": "the first image"}
	old.Spec.Template.Spec.Class.Name, old.Spec.Replicas = "old", 1
	objects = append(objects, old)
	paused := deployment.DeepCopy()
	paused.Name, paused.UID, paused.Spec.Paused = "paused", "paused", true
	paused.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "paused"}}
	paused.Spec.Template.Labels = paused.Spec.Selector.MatchLabels
	objects = append(objects, paused)
	expiry := metav1.NewTime(time.Now().Add(time.Hour))
	for i, phase := range []v1alpha1.MachinePhase{
		"", v1alpha1.MachinePending, v1alpha1.MachineAvailable, v1alpha1.MachineRunning, v1alpha1.MachineTerminating, v1alpha1.MachineUnknown,
		v1alpha1.MachineFailed, v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineInPlaceUpdating, v1alpha1.MachineInPlaceUpdateFailed,
	} {
		machine := like.DeepCopy()
		machine.Name, machine.UID = fmt.Sprintf("pool-0-%d", i), types.UID(fmt.Sprintf("pool-0-%d", i))
		machine.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(old, v1alpha1.SchemeGroupVersion.WithKind("MachineSet"))}
		if i%2 == 0 {
			machine.OwnerReferences = nil
		}
		machine.Spec.ProviderID = "sim:///" + machine.Name
		machine.Status.CurrentStatus = v1alpha1.CurrentStatus{Phase: phase, LastUpdateTime: metav1.Now()}
		machine.Status.LastOperation = v1alpha1.LastOperation{Description: "no capacity in zone a", State: v1alpha1.MachineStateFailed, Type: "Create", ErrorCode: "ResourceExhausted", LastUpdateTime: metav1.Now()}
		if phase == v1alpha1.MachineFailed {
			machine.Status.CurrentStatus.PreserveExpiryTime = &expiry
		}
		objects = append(objects, machine, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "n", Name: machine.Name},
			InvolvedObject: corev1.ObjectReference{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "Machine", Namespace: "n", Name: machine.Name},
			Reason:         "CreationFailed", Message: "no capacity in zone a", Type: []string{corev1.EventTypeWarning, corev1.EventTypeNormal}[i%2], LastTimestamp: metav1.Now(), Count: 2,
		})
	}
	for _, name := range []string{"host-1", "host-2"} {
		host := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{vmv1alpha1.HostKey: ""}}}
		host.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("16Gi"), corev1.ResourcePods: resource.MustParse("10")}
		host.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if name == "host-2" {
			host.Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletStopped", Message: "the host does not respond"}
		}
		objects = append(objects, host)
	}
	memory := resource.MustParse("2Gi")
	for name, migration := range map[string]*vmv1alpha1.VirtualMachineMigration{
		"still": nil,
		"moves": {Phase: vmv1alpha1.MigrationCopying, SourceNodeName: "host-1", TargetNodeName: "host-2", DoneBytes: 1 << 20, TotalBytes: 1 << 30},
		"stays": {Phase: vmv1alpha1.MigrationFailed, SourceNodeName: "host-1", TargetNodeName: "host-2", Reason: "Timeout", Message: "the guest writes faster than its memory is copied"},
	} {
		vm := &vmv1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name}, Spec: vmv1alpha1.VirtualMachineSpec{UUID: "7c9e6679-7425-40de-944b-e07fc1f90ae7", CPUs: 2, Memory: &memory}}
		vm.Status.Phase, vm.Status.NodeName, vm.Status.Addresses, vm.Status.ActivePodName, vm.Status.Migration = vmv1alpha1.PhaseRunning, "host-1", []string{"10.77.0.5"}, name+"-x7k2p", migration
		for _, of := range []string{vmv1alpha1.ConditionReady, vmv1alpha1.ConditionLiveMigratable, vmv1alpha1.ConditionRestartNeeded} {
			vm.Status.Conditions = append(vm.Status.Conditions, metav1.Condition{Type: of, Status: metav1.ConditionTrue, Reason: "GuestRuns", Message: "the guest runs", LastTransitionTime: metav1.Now()})
		}
		objects = append(objects, vm)
	}
	return objects
}

// TestPage_IsAccessible checks each page with axe-core, in both colors, at both sizes.
func TestPage_IsAccessible(t *testing.T) {
	const axe = "../../ui/vendor/axe-core/axe.min.js"
	actions := []Action{{Name: "delete", Kind: "pool", Title: "Delete", Effect: "Deletes the machines.", Interrupts: true}, {Name: "scale", Kind: "pool", Title: "Scale", Effect: "Changes the number.", Input: "replicas"}}
	for i := range actions {
		actions[i].Command = func(Request) []string { return []string{"kubectl", "something"} }
	}
	p := browser.Open(t)
	s := serve(t, newFakeClient(t, everything()...), actions...)
	s.options.Console = func(context.Context, types.NamespacedName) (*websocket.Conn, error) { return nil, context.Canceled }
	p.Navigate(s.URL())
	p.Await(`document.querySelectorAll(".tile").length === 12`)
	for _, view := range []struct{ name, hash, prepare, wait string }{
		{"pools", "#/", ``, `document.querySelectorAll(".tile").length === 12`},
		{"pool", "#/pool/n/pool", `document.querySelector(".yaml").open = true`, `document.querySelector(".conclusion") && document.querySelector(".plain") && document.querySelector(".yaml pre").innerText.includes("kind")`},
		{"list", "#/pool/n/pool", `[...document.querySelectorAll(".switch button")].at(-1).click()`, `document.querySelector(".machines .line a") && document.querySelector(".events")`},
		{"question", "#/pool/n/pool", `document.querySelector(".actions button").click()`, `document.querySelector("dialog[open] code").innerText.includes("kubectl")`},
		{"machine", "#/machine/n/pool-0-7", ``, `document.querySelector(".conclusion") && document.querySelector(".events li")`},
		{"VMs", "#/vms", ``, `document.querySelectorAll("main tr").length === 4 && document.querySelector("progress")`},
		{"VM", "#/vm/n/stays", ``, `document.querySelector(".facts")`},
		{"hosts", "#/hosts", ``, `document.querySelectorAll("main tr").length === 3`},
		{"host", "#/host/host-1", ``, `document.querySelectorAll("main tr").length === 4`},
		{"a missing VM", "#/vm/n/none", ``, `document.querySelector(".empty")`},
		{"no page", "#/none", ``, `document.querySelector(".empty")`},
	} {
		// Each view begins with a new document, so that nothing of the previous one remains.
		p.Navigate("about:blank#" + view.hash)
		p.Navigate("http://" + s.options.Host + "/" + view.hash)
		p.Await(`document.querySelector("main h1, main h2")`)
		if view.prepare != "" {
			p.Await(`(() => { ` + view.prepare + `; return true })()`)
		}
		p.Await(view.wait)
		p.WantAccessible(axe, view.name)
		p.Resize(1440, 1000, false)
		p.Screenshot(t, view.name)
	}
	p.Navigate("http://" + s.options.Host + "/#/vms")
	p.Fill(".search input", "pool")
	browser.Evaluate[any](p, `document.querySelector(".search input").focus()`)
	p.Await(`document.querySelector("#found [aria-selected=true]") && !document.querySelector("#found").hidden`)
	p.WantAccessible(axe, "search")
	p.Screenshot(t, "search")
	p.Navigate("http://" + s.options.Host + "/console.html#n/still")
	p.Await(`document.querySelector("#again:not([hidden])")`)
	p.WantAccessible(axe, "console")
}
