package hooks

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"unicode"

	"github.com/go-logr/logr/funcr"
	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/inputs"
	"github.com/millwright-dev/millwright/test/support/env"
)

const namespace = "ns"

// harness is the handler of the hooks with a MachineSet of two VMs that were created from a template.
type harness struct {
	*testing.T
	handler *Handler
	drivers *registry.Registry
	client  client.Client
	cloud   *sim.Cloud
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	scheme := env.NewScheme()
	core.AddToScheme(scheme, core.V1Beta2)
	if err := infrav1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	h := &harness{T: t, drivers: registry.New(registry.Options{}), cloud: sim.NewCloud(sim.CloudOptions{})}
	if _, err := h.drivers.Register("sim", sim.New(sim.Config{Cloud: h.cloud})); err != nil {
		t.Fatal(err)
	}
	h.client = fakeclient.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&infrav1.MillwrightMachine{}).Build()
	h.handler = New(Options{Client: h.client, Live: h.client, Drivers: h.drivers, Log: testr.New(t)})
	h.template("old", `{"pool":"p","tags":{"a":"1"}}`)
	for _, name := range []string{"m1", "m2"} {
		h.machine(name, "old")
	}
	return h
}

func (h *harness) create(object client.Object) {
	h.Helper()
	object.SetNamespace(namespace)
	if err := h.client.Create(h.Context(), object); err != nil {
		h.Fatal(err)
	}
}

func raw(text string) *runtime.RawExtension { return &runtime.RawExtension{Raw: []byte(text)} }

func (h *harness) template(name, spec string, changes ...func(*infrav1.MillwrightMachineSpec)) *infrav1.MillwrightMachineTemplate {
	h.Helper()
	template := &infrav1.MillwrightMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}}
	template.Spec.Template.Spec = infrav1.MillwrightMachineSpec{Driver: "sim", ProviderSpec: raw(spec)}
	for _, change := range changes {
		change(&template.Spec.Template.Spec)
	}
	h.create(template)
	return template
}

// machine creates a machine of MachineSet "set" with its VM from a template.
func (h *harness) machine(name, from string) *infrav1.MillwrightMachine {
	h.Helper()
	owner := &core.Machine{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{
		{APIVersion: core.V1Beta2.String(), Kind: core.MachineSetKind, Name: "set", UID: "uid"},
	}}}
	owner.Spec.InfrastructureRef = core.Reference{APIGroup: infrav1.GroupName, Kind: infrav1.MillwrightMachineKind, Name: name}
	h.create(owner)
	machine := &infrav1.MillwrightMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{core.AnnotationClonedFrom: from}}}
	template := &infrav1.MillwrightMachineTemplate{}
	if err := h.client.Get(h.Context(), client.ObjectKey{Namespace: namespace, Name: from}, template); err != nil {
		h.Fatal(err)
	}
	machine.Namespace, machine.Spec = namespace, template.Spec.Template.Spec
	reader := inputs.Reader{Cache: h.client, Live: h.client, Placer: h.drivers}
	objects, err := reader.Read(h.Context(), machine)
	if err != nil {
		h.Fatal(err)
	}
	created, err := h.drivers.CreateMachine(h.Context(), &driver.CreateMachineRequest{Machine: objects.Machine, MachineClass: objects.Class, Secret: objects.Secret})
	if err != nil {
		h.Fatal(err)
	}
	machine.Spec.ProviderID = created.ProviderID
	h.create(machine)
	machine.Status.Ready, machine.Status.ProviderID = true, created.ProviderID
	if err := h.client.Status().Update(h.Context(), machine); err != nil {
		h.Fatal(err)
	}
	return machine
}

// call sends a request to a hook, and returns its response.
func (h *harness) call(hook string, request any) map[string]any {
	h.Helper()
	body, err := json.Marshal(request)
	if err != nil {
		h.Fatal(err)
	}
	response := h.post(strings.ToLower(hook)+"/"+strings.ToLower(hook), body)
	if response.Code != http.StatusOK {
		h.Fatalf("%d: %s", response.Code, response.Body)
	}
	decoded := map[string]any{}
	if err := json.Unmarshal(response.Body.Bytes(), &decoded); err != nil {
		h.Fatal(err)
	}
	if decoded["apiVersion"] != apiVersion || decoded["kind"] != hook+"Response" {
		h.Errorf("response %v", decoded)
	}
	return decoded
}

func (h *harness) post(path string, body []byte) *httptest.ResponseRecorder {
	response := httptest.NewRecorder()
	h.handler.ServeHTTP(response, httptest.NewRequestWithContext(h.Context(), http.MethodPost, Path+path, bytes.NewReader(body)))
	return response
}

// object returns an object as Cluster API sends it.
func object(kind string, from client.Object, spec any) map[string]any {
	return map[string]any{
		"apiVersion": infrav1.SchemeGroupVersion.String(), "kind": kind, "spec": spec,
		"metadata": map[string]any{"name": from.GetName(), "namespace": namespace, "annotations": from.GetAnnotations()},
	}
}

// canUpdateSet asks whether the MachineSet can be updated to a template.
func (h *harness) canUpdateSet(desired *infrav1.MillwrightMachineTemplate) map[string]any {
	h.Helper()
	side := func(template *infrav1.MillwrightMachineTemplate) map[string]any {
		return map[string]any{
			"machineSet":                    map[string]any{"metadata": map[string]any{"name": "set", "namespace": namespace}},
			"infrastructureMachineTemplate": object(infrav1.MillwrightMachineTemplateKind, template, template.Spec),
		}
	}
	old := &infrav1.MillwrightMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: "old"}}
	return h.call("CanUpdateMachineSet", map[string]any{"current": side(old), "desired": side(desired)})
}

// TestDiscovery_ListsHooks checks that the names of the hooks match their paths, and that the timeouts are within Cluster API's
// limit.
func TestDiscovery_ListsHooks(t *testing.T) {
	h := newHarness(t)
	response := discovery{}
	if err := json.Unmarshal(h.post("discovery", []byte(`{}`)).Body.Bytes(), &response); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, handler := range response.Handlers {
		names = append(names, handler.Name)
		if handler.Name != strings.ToLower(handler.RequestHook.Hook) || handler.RequestHook.APIVersion != apiVersion || handler.TimeoutSeconds > 30 || handler.FailurePolicy != "Fail" {
			t.Errorf("%+v", handler)
		}
	}
	if diff := cmp.Diff([]string{"canupdatemachineset", "canupdatemachine", "updatemachine"}, names); diff != "" {
		t.Error(diff)
	}
}

// TestCanUpdateMachineSet checks that the hook accepts a change only if it can make all of it (I2).
func TestCanUpdateMachineSet(t *testing.T) {
	const tags = `{"pool":"p","tags":{"a":"2"}}`
	type spec = infrav1.MillwrightMachineSpec
	for name, tc := range map[string]struct {
		spec   string
		change func(*spec)
		// reason is part of the message; empty if the update is possible.
		reason string
	}{
		"supported change":      {spec: tags},
		"no change":             {spec: `{"tags":{"a":"1"},"pool":"p"}`},
		"change needs a new VM": {spec: `{"pool":"q","tags":{"a":"2"}}`, reason: "must be replaced: pool"},
		"another driver":        {spec: tags, change: func(s *spec) { s.Driver = "vm" }, reason: `the driver changes from "sim" to "vm"`},
		"other credentials":     {spec: tags, change: func(s *spec) { s.CredentialsSecretRef = &infrav1.LocalReference{Name: "a"} }, reason: "credentialsSecretRef"},
		"other failure domains": {spec: tags, change: func(s *spec) { s.FailureDomains = []infrav1.Placement{{Name: "a"}} }, reason: "failureDomains"},
		"node template":         {spec: tags, change: func(s *spec) { s.NodeTemplate = &infrav1.NodeTemplate{OperatingSystem: "linux"} }},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			change := tc.change
			if change == nil {
				change = func(*spec) {}
			}
			desired := h.template("new", tc.spec, change)
			response := h.canUpdateSet(desired)
			if response["status"] != succeeded {
				t.Fatalf("response %v", response)
			}
			if message, _ := response["message"].(string); tc.reason != "" {
				if !strings.Contains(message, tc.reason) || response["infrastructureMachineTemplatePatch"] != nil {
					t.Errorf("response %v, want a refusal with %q", response, tc.reason)
				}
				return
			}
			var typed canUpdateMachineSetResponse
			text, _ := json.Marshal(response)
			if err := json.Unmarshal(text, &typed); err != nil {
				t.Fatal(err)
			}
			want, _ := json.Marshal([]any{map[string]any{"op": "replace", "path": "/spec/template/spec", "value": desired.Spec.Template.Spec}})
			if typed.Patch == nil || typed.Patch.PatchType != "JSONPatch" || !sameJSON(t, typed.Patch.Patch, want) {
				t.Errorf("response %v", response)
			}
			if slices.Contains(h.journal(), sim.Updated) {
				t.Error("a VM was changed")
			}
		})
	}
}

func sameJSON(t *testing.T, got, want []byte) bool {
	t.Helper()
	var a, b any
	if json.Unmarshal(got, &a) != nil || json.Unmarshal(want, &b) != nil {
		return false
	}
	return cmp.Equal(a, b)
}

// journal returns the effects of all calls on the VMs.
func (h *harness) journal() []sim.Effect {
	h.Helper()
	entries, err := h.cloud.Journal()
	if err != nil {
		h.Fatal(err)
	}
	var all []sim.Effect
	for _, entry := range entries {
		all = append(all, entry.Effect)
	}
	return all
}

// TestCanUpdateMachineSet_RefusedForOneVM checks that a single VM that cannot be updated prevents the update of its MachineSet, unless it
// is not ready yet.
func TestCanUpdateMachineSet_RefusedForOneVM(t *testing.T) {
	h := newHarness(t)
	h.template("other", `{"pool":"q","tags":{"a":"1"}}`)
	other := h.machine("m3", "other")
	desired := h.template("new", `{"pool":"p","tags":{"a":"2"}}`)
	response := h.canUpdateSet(desired)
	if message := fmt.Sprint(response["message"]); response["infrastructureMachineTemplatePatch"] != nil ||
		!strings.Contains(message, other.Spec.ProviderID) || !strings.Contains(message, "pool") {
		t.Errorf("response %v", response)
	}
	other.Status.Ready = false
	if err := h.client.Status().Update(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if response := h.canUpdateSet(desired); response["infrastructureMachineTemplatePatch"] == nil {
		t.Errorf("response %v", response)
	}
}

// secretReads counts the reads of Secrets.
type secretReads struct {
	client.Reader
	count atomic.Int32
}

func (s *secretReads) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if _, is := object.(*corev1.Secret); is {
		s.count.Add(1)
	}
	return s.Reader.Get(ctx, key, object, options...)
}

// TestCanUpdateMachineSet_ReadsSecretsOnce checks that a Secret is read once per request, and not for each VM of the MachineSet.
func TestCanUpdateMachineSet_ReadsSecretsOnce(t *testing.T) {
	h := newHarness(t)
	credentials := func(spec *infrav1.MillwrightMachineSpec) {
		spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "credentials"}
	}
	h.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "credentials"}, Data: map[string][]byte{"key": []byte("value")}})
	h.template("secret", `{"pool":"p"}`, credentials)
	for _, name := range []string{"m3", "m4", "m5"} {
		h.machine(name, "secret")
	}
	var machines []*infrav1.MillwrightMachine
	for _, name := range []string{"m3", "m4", "m5"} {
		machine := &infrav1.MillwrightMachine{}
		if err := h.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, machine); err != nil {
			t.Fatal(err)
		}
		machines = append(machines, machine)
	}
	reads := &secretReads{Reader: h.client}
	h.handler.Live = reads
	to := target{machines[0].Spec, "secret"}
	for round := range int32(2) { // a Secret may change before the next request
		if err := h.handler.checkUpdates(t.Context(), machines, to); err != nil {
			t.Fatal(err)
		}
		if got := reads.count.Load(); got != round+1 {
			t.Errorf("after %d requests Secrets were read %d times", round+1, got)
		}
	}
}

// TestCanUpdateMachineSet_FailsIfUndecided checks that a request fails, so that Cluster API sends it again, if the hook cannot decide.
// Otherwise Cluster API would replace the VMs.
func TestCanUpdateMachineSet_FailsIfUndecided(t *testing.T) {
	tags := `{"pool":"p","tags":{"a":"2"}}`
	for name, tc := range map[string]struct {
		setup func(*harness)
		want  string
	}{
		"driver fails": {func(h *harness) {
			h.replaceDriver(func(d *fake.Driver) { d.Fail(fake.UpdateMachine, codes.Unavailable, codes.Unavailable) })
		}, "Unavailable"},
		"driver not registered": {func(h *harness) {
			h.handler.Drivers = registry.New(registry.Options{})
		}, `driver "sim" is not registered`},
		"too many requests": {func(h *harness) {
			for range maxConcurrent {
				h.handler.slots <- struct{}{}
			}
		}, "too many concurrent requests"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			desired := h.template("new", tags)
			tc.setup(h)
			response := h.canUpdateSet(desired)
			if response["status"] != failed || !strings.Contains(fmt.Sprint(response["message"]), tc.want) {
				t.Errorf("response %v, want %q", response, tc.want)
			}
		})
	}
	t.Run("class is missing", func(t *testing.T) {
		h := newHarness(t)
		response := h.canUpdateSet(h.template("new", tags, func(s *infrav1.MillwrightMachineSpec) {
			s.ProviderSpec, s.MachineClassRef = nil, &infrav1.LocalReference{Name: "missing"}
		}))
		if response["status"] != failed || !strings.Contains(fmt.Sprint(response["message"]), `MachineClass "missing"`) {
			t.Errorf("response %v", response)
		}
	})
}

// replaceDriver replaces the simulated driver by a fake driver with scripted responses.
func (h *harness) replaceDriver(script func(*fake.Driver)) {
	d := fake.New(fake.Config{})
	script(d)
	h.handler.Drivers = registry.Only("sim", d)
}

// TestHandler_SanitizesTexts checks that responses and log lines are short and printable, whatever the driver or the status
// contains.
func TestHandler_SanitizesTexts(t *testing.T) {
	malicious := "malicious \x1b[2J\u009b5n\u202e\x00\xff" + strings.Repeat("\x1b", 3*maxText)
	type request = driver.UpdateMachineRequest
	type response = driver.UpdateMachineResponse
	for name, hook := range map[string]fake.Hook[request, response]{
		"refuses": func(context.Context, *request, func() (*response, error)) (*response, error) {
			return &response{Replacements: []string{malicious}}, nil
		},
		"fails": func(context.Context, *request, func() (*response, error)) (*response, error) {
			return nil, status.Error(codes.Internal, malicious)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			var logged []string
			h.handler.Log = funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})
			desired := h.template("new", `{"pool":"p","tags":{"a":"2"}}`)
			h.replaceDriver(func(d *fake.Driver) { d.OnUpdate(hook) })
			message, _ := h.canUpdateSet(desired)["message"].(string)
			for _, text := range append(logged, message) {
				if !strings.Contains(text, "malicious") || len(text) > 2*maxText || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Errorf("%d bytes: %.200q", len(text), text)
				}
			}
		})
	}
	machine := &infrav1.MillwrightMachine{}
	machine.Name, machine.Annotations = malicious, map[string]string{}
	sanitized := updateMachineResponse{}
	_, sanitized.Message = progress(machine, nil)
	if sanitized.sanitize(); strings.Contains(sanitized.Message, "\x1b") || len(sanitized.Message) > maxText {
		t.Errorf("message %.200q", sanitized.Message)
	}
}

// TestCanUpdateMachineSet_DriverWithoutSupport checks that a driver that does not support updates leads to the same result as no hooks.
func TestCanUpdateMachineSet_DriverWithoutSupport(t *testing.T) {
	h := newHarness(t)
	desired := h.template("new", `{"pool":"p","tags":{"a":"2"}}`)
	h.replaceDriver(func(d *fake.Driver) { d.Fail(fake.UpdateMachine, codes.Unimplemented, codes.Unimplemented) })
	response := h.canUpdateSet(desired)
	if response["status"] != succeeded || response["infrastructureMachineTemplatePatch"] != nil || !strings.Contains(fmt.Sprint(response["message"]), "does not support updates of existing VMs") {
		t.Errorf("response %v", response)
	}
}

// TestCanUpdateMachine checks a single machine, as for a control plane.
func TestCanUpdateMachine(t *testing.T) {
	h := newHarness(t)
	machine := &infrav1.MillwrightMachine{}
	if err := h.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "m1"}, machine); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		spec string
		want bool
	}{"possible": {`{"pool":"p","tags":{"a":"2"}}`, true}, "impossible": {`{"pool":"q"}`, false}} {
		t.Run(name, func(t *testing.T) {
			template := h.template(name, tc.spec)
			desired := machine.DeepCopy()
			desired.Spec.ProviderSpec = template.Spec.Template.Spec.ProviderSpec
			desired.Annotations[core.AnnotationClonedFrom] = name
			owner := map[string]any{"metadata": map[string]any{"name": "m1", "namespace": namespace}}
			response := h.call("CanUpdateMachine", map[string]any{
				"current": map[string]any{"machine": owner, "infrastructureMachine": object(infrav1.MillwrightMachineKind, machine, machine.Spec)},
				"desired": map[string]any{"machine": owner, "infrastructureMachine": object(infrav1.MillwrightMachineKind, desired, desired.Spec)},
			})
			if response["status"] != succeeded || (response["infrastructureMachinePatch"] != nil) != tc.want {
				t.Errorf("response %v", response)
			}
		})
	}
}

// TestUpdateMachine checks that the response reports the controller's condition for the current generation (I3).
func TestUpdateMachine(t *testing.T) {
	condition := func(status metav1.ConditionStatus, reason string, generation int64) *metav1.Condition {
		return &metav1.Condition{Type: infrav1.ConditionUpToDate, Status: status, Reason: reason, Message: "because", ObservedGeneration: generation}
	}
	for name, tc := range map[string]struct {
		condition *metav1.Condition
		stale     bool
		retry     float64
		want      string
	}{
		"no condition":                       {retry: retrySoon, want: "is starting"},
		"change not observed":                {stale: true, condition: condition(metav1.ConditionTrue, infrav1.ReasonUpdated, 2), retry: retrySoon, want: "has not been observed yet"},
		"condition of an earlier generation": {condition: condition(metav1.ConditionTrue, infrav1.ReasonUpdated, 1), retry: retrySoon, want: "is starting"},
		"updating":                           {condition: condition(metav1.ConditionFalse, infrav1.ReasonUpdating, 2), retry: retrySoon, want: "because"},
		"failed":                             {condition: condition(metav1.ConditionFalse, infrav1.ReasonUpdateFailed, 2), retry: retryLater, want: "because"},
		"replacement needed":                 {condition: condition(metav1.ConditionFalse, infrav1.ReasonReplacementNeeded, 2), retry: retryLater, want: "because"},
		"updated":                            {condition: condition(metav1.ConditionTrue, infrav1.ReasonUpdated, 2), want: "matches the spec"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			machine := &infrav1.MillwrightMachine{}
			if err := h.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "m1"}, machine); err != nil {
				t.Fatal(err)
			}
			machine.Generation = 2
			machine.Annotations[core.AnnotationUpdateInProgress] = ""
			machine.Spec.ProviderSpec = raw(`{"tags":{"a":"2"},"pool":"p"}`)
			if err := h.client.Update(t.Context(), machine); err != nil {
				t.Fatal(err)
			}
			if tc.condition != nil {
				apimeta.SetStatusCondition(&machine.Status.Conditions, *tc.condition)
				if err := h.client.Status().Update(t.Context(), machine); err != nil {
					t.Fatal(err)
				}
			}
			desired := machine.DeepCopy()
			desired.Spec.ProviderSpec = raw(`{"pool":"p","tags":{"a":"2"}}`) // equal, but in another order
			if tc.stale {
				desired.Spec.ProviderSpec = raw(`{"pool":"p","tags":{"a":"3"}}`)
			}
			response := h.call("UpdateMachine", map[string]any{"desired": map[string]any{
				"machine":               map[string]any{"metadata": map[string]any{"name": "m1", "namespace": namespace}},
				"infrastructureMachine": object(infrav1.MillwrightMachineKind, desired, desired.Spec),
			}})
			if response["status"] != succeeded || response["retryAfterSeconds"] != tc.retry || !strings.Contains(fmt.Sprint(response["message"]), tc.want) {
				t.Errorf("response %v, want %v and %q", response, tc.retry, tc.want)
			}
		})
	}
}

// TestHandler_InvalidRequests checks that invalid requests get a response and have no effect.
func TestHandler_InvalidRequests(t *testing.T) {
	h := newHarness(t)
	others := map[string]any{
		"machineSet":                    map[string]any{"metadata": map[string]any{"name": "set", "namespace": namespace}},
		"infrastructureMachineTemplate": map[string]any{"apiVersion": "example.com/v1", "kind": "OtherTemplate", "metadata": map[string]any{"name": "old"}},
	}
	if response := h.call("CanUpdateMachineSet", map[string]any{"current": others, "desired": others}); response["status"] != succeeded ||
		response["infrastructureMachineTemplatePatch"] != nil {
		t.Errorf("another provider's template: %v", response)
	}
	for _, hook := range h.handler.hooks {
		if response := h.call(hook, map[string]any{}); response["infrastructureMachineTemplatePatch"] != nil || response["infrastructureMachinePatch"] != nil || response["status"] == succeeded && response["retryAfterSeconds"] == 0.0 {
			t.Errorf("%s without objects: %v", hook, response)
		}
		path := strings.ToLower(hook) + "/" + strings.ToLower(hook)
		for _, body := range []string{"", "[]", "{", `{"current":3}`, `{"desired":"x"}`} {
			if response := h.post(path, []byte(body)); response.Code != http.StatusBadRequest && response.Code != http.StatusOK {
				t.Errorf("%s: response to %q has code %d", hook, body, response.Code)
			}
		}
		if response := h.post(path, bytes.Repeat([]byte(" "), maxRequest+1)); response.Code != http.StatusBadRequest {
			t.Errorf("%s: the response to a long request has code %d", hook, response.Code)
		}
	}
	if response := h.post("other/other", []byte("{}")); response.Code != http.StatusNotFound {
		t.Errorf("the response for an unknown hook has code %d", response.Code)
	}
}
