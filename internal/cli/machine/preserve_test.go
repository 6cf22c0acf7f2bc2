package machine

import (
	"bytes"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
)

// TestPreserveAndRelease checks the value of the annotation and the output.
func TestPreserveAndRelease(t *testing.T) {
	const own, last = v1alpha1.AnnotationKeyPreserve, v1alpha1.AnnotationKeyLastAppliedPreserve
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		given     map[string]string
		preserved bool
		args      string
		want      string
		wantText  string
		fails     string
	}{
		"preserve":               {args: "preserve m", want: "now", wantText: "machine.machine.sapcloud.io/m will be preserved now\n"},
		"preserve, twice":        {given: map[string]string{own: "now"}, args: "preserve m", want: "now", wantText: "will be preserved now"},
		"preserve when failed":   {args: "preserve --when-failed machine/m", want: "when-failed", wantText: "once it has failed"},
		"release":                {given: map[string]string{own: "now"}, args: "release m", wantText: "will no longer be preserved"},
		"release, stopping":      {preserved: true, args: "release m", wantText: "will no longer be preserved"},
		"release, nothing to do": {args: "release m", wantText: "is not preserved"},
		"release for ever":       {given: map[string]string{own: "now"}, args: "release m --never", want: "false", wantText: "will not be preserved\n"},
		"release of a set's":     {given: map[string]string{own: "auto-preserved"}, args: "release machine m", want: "false", wantText: "will not be preserved\n"},
		"the node's counts":      {given: map[string]string{last: "now"}, args: "preserve m", fails: "of node node-m takes precedence"},
		"no such machine":        {args: "preserve other", fails: "machine shoot/other does not exist"},
		"preserve, dry run":      {args: "preserve m --dry-run=client", wantText: "machine.machine.sapcloud.io/m will be preserved now (dry run)\n"},
		"preserve, server":       {args: "preserve m --dry-run=server", wantText: "will be preserved now (server dry run)\n"},
		"release, dry run":       {given: map[string]string{own: "now"}, args: "release m --dry-run=client", want: "now", wantText: "will no longer be preserved (dry run)"},
		"as YAML":                {args: "preserve m --dry-run=client -o yaml", wantText: "node.machine.sapcloud.io/preserve: now\n"},
		"by name":                {args: "preserve m -o name", want: "now", wantText: "machine.machine.sapcloud.io/m\n"},
		"several names":          {args: "preserve a b", fails: "expected one argument, the name of a Machine"},
		"no name":                {args: "release", fails: "expected one argument, the name of a Machine"},
		"another kind":           {args: "release mcd/pool", fails: "expected one argument, the name of a Machine"},
	} {
		t.Run(name, func(t *testing.T) {
			machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{
				Namespace: "shoot", Name: "m", UID: "1", Annotations: test.given, Labels: map[string]string{v1alpha1.NodeLabelKey: "node-m"},
			}}
			if test.preserved {
				machine.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: time.Unix(1, 0)}
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(machine).Build()
			wantText, err := runWith(t, c, strings.Fields(test.args))
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Errorf("error %v, want %q", err, test.fails)
				}
				return
			}
			if err != nil || !strings.Contains(wantText, test.wantText) {
				t.Errorf("got %q, %v; want %q", wantText, err, test.wantText)
			}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(machine), machine); err != nil || machine.Annotations[own] != test.want {
				t.Errorf("the annotation is %q (%v), want %q", machine.Annotations[own], err, test.want)
			}
		})
	}
}

// runWith runs a command of New with a given client.
func runWith(t *testing.T, c client.WithWatch, texts []string) (string, error) {
	t.Helper()
	root := newCommands(func(*kubeconfig.Flags) (client.Client, string, error) { return c, "shoot", nil })
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(texts)
	root.SilenceErrors, root.SilenceUsage = true, true
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}
