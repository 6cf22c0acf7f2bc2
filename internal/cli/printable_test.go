package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// hostile is text that a guest, a provider or a user may write to attack a terminal. It clears the screen, sets
// the title, contains 8-bit sequences, returns to the start of the line, and reverses the text direction.
const hostile = "evil\x1b[2J\x1b]0;title\a\u009b31m\rback\u202eturned"

// TestOutput_HasNoControlCharacters checks that commands print plain text, whatever the objects contain.
func TestOutput_HasNoControlCharacters(t *testing.T) {
	tier.All(t)
	w := newClusters(t)
	deployment := w.revisions(t, "pool")
	set := w.set("other", "class"+hostile, 0)
	set.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: "3", "kubernetes.io/change-cause": hostile}
	set.Spec.Selector, set.Spec.Template.Labels = deployment.Spec.Selector, deployment.Spec.Template.Labels
	set.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(deployment, v1alpha1.SchemeGroupVersion.WithKind("MachineDeployment"))}
	w.create(set)
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "m", Namespace: w.Namespace}, Spec: v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: "MachineClass", Name: "now"}}}
	w.create(machine)
	machine.Status.LastOperation = v1alpha1.LastOperation{Description: "Cloud provider message - " + hostile, State: v1alpha1.MachineStateFailed, Type: v1alpha1.MachineOperationCreate}
	machine.Status.CurrentStatus.Phase = v1alpha1.MachineCrashLoopBackOff
	w.must(w.Client.Status().Update(t.Context(), machine))
	w.create(&corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: "e", Namespace: w.Namespace},
		InvolvedObject: corev1.ObjectReference{Kind: "Machine", Name: "m", Namespace: w.Namespace, UID: machine.UID}, Type: corev1.EventTypeWarning, Reason: "Odd", Message: hostile,
	})
	vm := &vmv1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm", Namespace: w.Namespace}, Spec: vmv1alpha1.VirtualMachineSpec{CPUs: 1}}
	vms, err := connect.NewClient(w.Admin)
	if err != nil {
		t.Fatal(err)
	}
	w.must(vms.Create(t.Context(), vm))
	vm.Status.Conditions = []metav1.Condition{{
		Type: vmv1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "Odd", Message: hostile + "\nvm-2\tRunning", LastTransitionTime: metav1.Now(),
	}}
	vm.Status.NodeName = hostile
	w.must(vms.Status().Update(t.Context(), vm))
	for name, tc := range map[string]struct {
		args  []string
		shown bool // the printable part of the hostile text appears
	}{
		"list":         {[]string{"vm", "list"}, true},
		"console":      {[]string{"vm", "console", hostile}, true},
		"migrate":      {[]string{"vm", "migrate", "vm"}, true},
		"explain":      {[]string{"explain", "machine", "m"}, true},
		"as JSON":      {[]string{"explain", "machine", "m", "-o", "json"}, true},
		"history":      {[]string{"rollout", "history", "pool"}, true},
		"revision":     {[]string{"rollout", "history", "pool", "--revision", "3"}, false},
		"status":       {[]string{"rollout", "status", "pool", "--watch=false"}, false},
		"bad name":     {[]string{"explain", "machine", hostile}, true},
		"bad flag":     {[]string{"explain", "--" + hostile}, true},
		"no class":     {[]string{"instance", "create", "m", "--class", "/nowhere/" + hostile}, true},
		"no VM":        {[]string{"managevm", "--machineclass", "/nowhere/" + hostile, "--machinename", "m", "--driver", "sim"}, true},
		"no directory": {[]string{"status", "--dir", "/nowhere/" + hostile}, true},
	} {
		t.Run(name, func(t *testing.T) {
			args := tc.args
			if !slices.Contains([]string{"status", "instance", "managevm"}, args[0]) { // these commands do not read a cluster
				args = append(args, "--kubeconfig", w.control, "-n", w.Namespace)
			}
			var out bytes.Buffer
			Main(Program{Args: args, Stdout: &out, Stderr: &out})
			text := out.String()
			if at := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }); at >= 0 {
				t.Errorf("prints %q", text)
			}
			if tc.shown && !strings.Contains(text, "evil") {
				t.Errorf("the text is not there, so nothing was checked: %q", text)
			}
			if strings.Contains(text, "\nvm-2") {
				t.Errorf("a message makes a line of its own:\n%s", text)
			}
		})
	}
}

func (w *clusters) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}
