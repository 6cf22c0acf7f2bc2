package dryrun

import (
	"context"
	"slices"
	"testing"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestMode_Values(t *testing.T) {
	for argument, want := range map[string]string{
		"": "", "--dry-run": " (dry run)", "--dry-run=true": " (dry run)", "--dry-run=client": " (dry run)",
		"--dry-run=server": " (server dry run)", "--dry-run=none": "", "--dry-run=false": "", "--dry-run=perhaps": "error",
	} {
		mode, cmd := &Mode{}, &cobra.Command{Use: "test"}
		mode.Add(cmd)
		given := slices.DeleteFunc([]string{argument}, func(text string) bool { return text == "" })
		if err := cmd.ParseFlags(given); (err != nil) != (want == "error") || err == nil && (mode.Suffix() != want || mode.On() != (want != "")) {
			t.Errorf("%q: %q, %v", argument, mode.Suffix(), err)
		}
	}
	mode, cmd := &Mode{}, &cobra.Command{Use: "test"}
	mode.AddLocal(cmd)
	if err := cmd.ParseFlags([]string{"--dry-run=server"}); err == nil {
		t.Error("a command without an API server accepts --dry-run=server")
	}
}

// TestMode_WritesNothing checks which writes reach the API server.
func TestMode_WritesNothing(t *testing.T) {
	for value, want := range map[string]struct{ sent, stored bool }{None: {true, true}, Client: {false, false}, Server: {true, false}} {
		sent := 0
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p"}}
		c := fake.NewClientBuilder().WithObjects(pod).WithInterceptorFuncs(interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
				sent++
				return c.Patch(ctx, object, patch, options...)
			},
			Delete: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.DeleteOption) error {
				sent++
				return c.Delete(ctx, object, options...)
			},
		}).Build()
		mode := &Mode{value: value}
		changed := pod.DeepCopy()
		changed.Labels = map[string]string{"a": "b"}
		wrapped := mode.Wrap(c)
		if err := wrapped.Patch(t.Context(), changed, client.MergeFrom(pod)); err != nil || changed.Labels["a"] != "b" {
			t.Errorf("%s: the patched object is %v, %v", value, changed.Labels, err)
		}
		if err := wrapped.Delete(t.Context(), pod); err != nil {
			t.Errorf("%s: %v", value, err)
		}
		exists := c.Get(t.Context(), client.ObjectKeyFromObject(pod), &corev1.Pod{}) == nil
		if (sent == 2) != want.sent || exists == want.stored {
			t.Errorf("%s: %d writes were sent, and the pod exists: %t", value, sent, exists)
		}
	}
}
