package machinedeployment

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestMutatedSet_IsDeleted checks that a set that the API server mutates is deleted immediately, and that no
// other set is created while that continues. The deployment would not recognize its own sets and would create more
// and more. Fields outside of the template may be changed.
func TestMutatedSet_IsDeleted(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*v1alpha1.MachineSet)
		fields string
	}{
		"annotations of the machines": {func(set *v1alpha1.MachineSet) {
			set.Spec.Template.Annotations = map[string]string{"policy.example.com/seen": "true"}
		}, "(spec.template.metadata.annotations)"},
		"labels of the machines": {func(set *v1alpha1.MachineSet) { set.Spec.Template.Labels["team"] = "a" }, "(spec.template.metadata.labels)"},
		"the class":              {func(set *v1alpha1.MachineSet) { set.Spec.Template.Spec.Class.Name = "z" }, "(spec.template.spec)"},
		"a name":                 {func(set *v1alpha1.MachineSet) { set.Spec.Template.Name = "z" }, "(spec.template.metadata)"},
		"labels":                 {func(set *v1alpha1.MachineSet) { set.Labels = map[string]string{"name": "other"} }, "(metadata.labels)"},
		"two fields": {func(set *v1alpha1.MachineSet) {
			set.Labels = map[string]string{"name": "other"}
			set.Spec.Template.Spec.Class.Name = "z"
		}, "(metadata.labels, spec.template.spec)"},
		"an annotation of the set": {func(set *v1alpha1.MachineSet) { set.Annotations["policy.example.com/seen"] = "true" }, ""},
		"what nodes get": {func(set *v1alpha1.MachineSet) {
			set.Spec.Template.Spec.NodeTemplateSpec.Labels = map[string]string{"team": "a"}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(fixture.Deployment(3, fixture.OfClass("b")), fixture.Set("a", 3, fixture.WithUID))
			s.Target = nil
			changes := true
			s.refuse = func(verb string, object client.Object) error {
				if set, ok := object.(*v1alpha1.MachineSet); ok && verb == "create" && changes {
					test.change(set)
				}
				return nil
			}
			for range 4 {
				_, err := s.Reconcile(t.Context(), request)
				if test.fields != "" && (err == nil || !strings.Contains(err.Error(), test.fields)) {
					t.Fatalf("error %v, want one about %s", err, test.fields)
				}
			}
			if test.fields != "" {
				s.wantMutated(t)
				for name, set := range s.all() {
					if !set.DeletionTimestamp.IsZero() {
						s.remove(name)
					}
				}
				changes = false
				s.pass(t)
			}
			if n := len(s.all()); n != 2 {
				t.Errorf("%d sets after the webhook was removed, want 2", n)
			}
		})
	}
}

// TestMutatedSet_IsRetriedAtIntervals checks that sets are not created one after the other if a webhook changes them, but
// not in dry runs.
func TestMutatedSet_IsRetriedAtIntervals(t *testing.T) {
	s := newServer(fixture.Deployment(3, fixture.OfClass("b")), fixture.Set("a", 3, fixture.WithUID))
	s.Target = nil
	now := clocktesting.NewFakePassiveClock(fixture.Noon)
	s.Clock = now
	created := 0
	s.refuse = func(verb string, object client.Object) error {
		if set, ok := object.(*v1alpha1.MachineSet); ok && verb == "create" && set.Name != "" { // dry runs have no name
			created++
			set.Spec.Template.Labels["team"] = "a"
		}
		return nil
	}
	for want := 1; want <= 3; want++ {
		for range 4 {
			if _, err := s.Reconcile(t.Context(), request); !errors.Is(err, rollout.ErrMutated) {
				t.Fatalf("error %v, want one about the changed set", err)
			}
			for name, set := range s.all() {
				if !set.DeletionTimestamp.IsZero() {
					s.remove(name)
				}
			}
		}
		if created != want {
			t.Errorf("%d sets were created after %d intervals, want %d", created, want-1, want)
		}
		now.SetTime(now.Now().Add(time.Minute))
	}
}

// wantMutated checks that no new set remains, that the old set was not scaled, and that the reason was reported
// once.
func (s *server) wantMutated(t *testing.T) {
	t.Helper()
	all := s.all()
	if n := all["pool-a"].Spec.Replicas; n != 3 {
		t.Errorf("the old set has %d replicas, want 3", n)
	}
	delete(all, "pool-a")
	for name, set := range all {
		if set.DeletionTimestamp.IsZero() || len(all) > 1 {
			t.Errorf("new set %s (of %d) has the deletion timestamp %v", name, len(all), set.DeletionTimestamp)
		}
	}
	got := s.progress()
	if got.Reason != v1alpha1.DeploymentReasonMutated || got.Status != v1alpha1.ConditionFalse || !strings.HasPrefix(got.Message, "spec.template: ") {
		t.Errorf("got %+v", got)
	}
	if diff := cmp.Diff([]string{v1alpha1.DeploymentReasonMutated + ": " + got.Message}, s.lines); diff != "" {
		t.Errorf("events: want - got +\n%s", diff)
	}
	if n := len(slices.DeleteFunc(slices.Clone(s.writes), func(w string) bool { return w != "patch status pool" })); n != 1 {
		t.Errorf("%d writes of the status: %q", n, s.writes)
	}
}

// mutating returns the configuration of a webhook that responds to every review with a patch.
func mutating(t *testing.T, patch string) admissionregistrationv1.WebhookClientConfig {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := &admissionv1.AdmissionReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{
			UID: review.Request.UID, Allowed: true, Patch: []byte(patch), PatchType: ptr.To(admissionv1.PatchTypeJSONPatch),
		}
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return admissionregistrationv1.WebhookClientConfig{URL: &server.URL, CABundle: authority}
}

// TestMutatedSet_IsDetectedOnServer checks that a dry run with a real API server detects a mutating webhook.
func TestMutatedSet_IsDetectedOnServer(t *testing.T) {
	e := env.New(t)
	hook := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "mutated-sets-" + e.Namespace},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "mutate.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy:     ptr.To(admissionregistrationv1.Fail),
			ClientConfig:      mutating(t, `[{"op":"add","path":"/spec/template/metadata/annotations","value":{"policy.example.com/seen":"true"}}]`),
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": e.Namespace}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{v1alpha1.GroupName}, APIVersions: []string{"v1alpha1"}, Resources: []string{"machinesets"}},
			}},
		}},
	}
	must(e.Client.Create(t.Context(), hook))
	t.Cleanup(func() { must(client.IgnoreNotFound(e.Client.Delete(context.Background(), hook))) })
	g := gomega.NewWithT(t)
	g.Eventually(func() map[string]string { // the API server takes a while to use the webhook
		probe := env.Fresh(e, fixture.Set("probe", 0))
		probe.OwnerReferences = nil
		must(e.Client.Create(t.Context(), probe, client.DryRunAll))
		return probe.Spec.Template.Annotations
	}).WithTimeout(eventually).Should(gomega.HaveLen(1))

	deployment := env.Fresh(e, fixture.Deployment(3))
	must(e.Client.Create(t.Context(), deployment))
	run(t, e)
	key := client.ObjectKeyFromObject(deployment)
	g.Eventually(func() string {
		must(e.Client.Get(t.Context(), key, deployment))
		return progressOf(deployment.Status).Reason
	}).WithTimeout(eventually).Should(gomega.Equal(v1alpha1.DeploymentReasonMutated))
	list := &v1alpha1.MachineSetList{}
	must(e.Client.List(t.Context(), list, client.InNamespace(e.Namespace)))
	if len(list.Items) != 1 || list.Items[0].DeletionTimestamp.IsZero() {
		t.Errorf("want one set that is being deleted, got %+v", list.Items)
	}
}
