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

// given is what the hooks are asked about: two VMs of a MachineSet, made from a template.
type given struct {
	*testing.T
	handler *Handler
	drivers *registry.Registry
	client  client.Client
	cloud   *sim.Cloud
}

func newGiven(t *testing.T) *given {
	t.Helper()
	scheme := env.NewScheme()
	core.AddToScheme(scheme, core.V1Beta2)
	if err := infrav1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	g := &given{T: t, drivers: registry.New(registry.Options{}), cloud: sim.NewCloud(sim.CloudOptions{})}
	if _, err := g.drivers.Register("sim", sim.New(sim.Config{Cloud: g.cloud})); err != nil {
		t.Fatal(err)
	}
	g.client = fakeclient.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&infrav1.MillwrightMachine{}).Build()
	g.handler = New(Options{Client: g.client, Live: g.client, Drivers: g.drivers, Log: testr.New(t)})
	g.template("old", `{"pool":"p","tags":{"a":"1"}}`)
	for _, name := range []string{"m1", "m2"} {
		g.machine(name, "old")
	}
	return g
}

func (g *given) create(object client.Object) {
	g.Helper()
	object.SetNamespace(namespace)
	if err := g.client.Create(g.Context(), object); err != nil {
		g.Fatal(err)
	}
}

func raw(text string) *runtime.RawExtension { return &runtime.RawExtension{Raw: []byte(text)} }

func (g *given) template(name, spec string, changes ...func(*infrav1.MillwrightMachineSpec)) *infrav1.MillwrightMachineTemplate {
	g.Helper()
	template := &infrav1.MillwrightMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}}
	template.Spec.Template.Spec = infrav1.MillwrightMachineSpec{Driver: "sim", ProviderSpec: raw(spec)}
	for _, change := range changes {
		change(&template.Spec.Template.Spec)
	}
	g.create(template)
	return template
}

// machine makes a machine of the MachineSet "set" with its VM, as a template says.
func (g *given) machine(name, from string) *infrav1.MillwrightMachine {
	g.Helper()
	owner := &core.Machine{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{
		{APIVersion: core.V1Beta2.String(), Kind: core.MachineSetKind, Name: "set", UID: "uid"},
	}}}
	owner.Spec.InfrastructureRef = core.Reference{APIGroup: infrav1.GroupName, Kind: infrav1.MillwrightMachineKind, Name: name}
	g.create(owner)
	machine := &infrav1.MillwrightMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{core.AnnotationClonedFrom: from}}}
	template := &infrav1.MillwrightMachineTemplate{}
	if err := g.client.Get(g.Context(), client.ObjectKey{Namespace: namespace, Name: from}, template); err != nil {
		g.Fatal(err)
	}
	machine.Namespace, machine.Spec = namespace, template.Spec.Template.Spec
	reader := inputs.Reader{Cache: g.client, Live: g.client, Placer: g.drivers}
	read, err := reader.Read(g.Context(), machine)
	if err != nil {
		g.Fatal(err)
	}
	made, err := g.drivers.CreateMachine(g.Context(), &driver.CreateMachineRequest{Machine: read.Machine, MachineClass: read.Class, Secret: read.Secret})
	if err != nil {
		g.Fatal(err)
	}
	machine.Spec.ProviderID = made.ProviderID
	g.create(machine)
	machine.Status.Ready, machine.Status.ProviderID = true, made.ProviderID
	if err := g.client.Status().Update(g.Context(), machine); err != nil {
		g.Fatal(err)
	}
	return machine
}

// ask sends a request to a hook, and returns its answer.
func (g *given) ask(hook string, request any) map[string]any {
	g.Helper()
	body, err := json.Marshal(request)
	if err != nil {
		g.Fatal(err)
	}
	response := g.post(strings.ToLower(hook)+"/"+strings.ToLower(hook), body)
	if response.Code != http.StatusOK {
		g.Fatalf("%d: %s", response.Code, response.Body)
	}
	answer := map[string]any{}
	if err := json.Unmarshal(response.Body.Bytes(), &answer); err != nil {
		g.Fatal(err)
	}
	if answer["apiVersion"] != apiVersion || answer["kind"] != hook+"Response" {
		g.Errorf("the answer is %v", answer)
	}
	return answer
}

func (g *given) post(path string, body []byte) *httptest.ResponseRecorder {
	response := httptest.NewRecorder()
	g.handler.ServeHTTP(response, httptest.NewRequestWithContext(g.Context(), http.MethodPost, Path+path, bytes.NewReader(body)))
	return response
}

// object is an object as Cluster API sends it.
func object(kind string, from client.Object, spec any) map[string]any {
	return map[string]any{
		"apiVersion": infrav1.SchemeGroupVersion.String(), "kind": kind, "spec": spec,
		"metadata": map[string]any{"name": from.GetName(), "namespace": namespace, "annotations": from.GetAnnotations()},
	}
}

// askSet asks whether the MachineSet can become what a template says.
func (g *given) askSet(desired *infrav1.MillwrightMachineTemplate) map[string]any {
	g.Helper()
	side := func(template *infrav1.MillwrightMachineTemplate) map[string]any {
		return map[string]any{
			"machineSet":                    map[string]any{"metadata": map[string]any{"name": "set", "namespace": namespace}},
			"infrastructureMachineTemplate": object(infrav1.MillwrightMachineTemplateKind, template, template.Spec),
		}
	}
	old := &infrav1.MillwrightMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: "old"}}
	return g.ask("CanUpdateMachineSet", map[string]any{"current": side(old), "desired": side(desired)})
}

// TestDiscovery: the names are those that the paths end in, and the answers come in the time that is allowed.
func TestDiscovery(t *testing.T) {
	g := newGiven(t)
	answer := discovery{}
	if err := json.Unmarshal(g.post("discovery", []byte(`{}`)).Body.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, h := range answer.Handlers {
		names = append(names, h.Name)
		if h.Name != strings.ToLower(h.RequestHook.Hook) || h.RequestHook.APIVersion != apiVersion || h.TimeoutSeconds > 30 || h.FailurePolicy != "Fail" {
			t.Errorf("%+v", h)
		}
	}
	if diff := cmp.Diff([]string{"canupdatemachineset", "canupdatemachine", "updatemachine"}, names); diff != "" {
		t.Error(diff)
	}
}

// TestCanUpdateMachineSet (I2): the whole difference, or nothing of it.
func TestCanUpdateMachineSet(t *testing.T) {
	const tags = `{"pool":"p","tags":{"a":"2"}}`
	type spec = infrav1.MillwrightMachineSpec
	for name, tc := range map[string]struct {
		spec   string
		change func(*spec)
		// why not; empty if it can.
		why string
	}{
		"what the driver changes":   {spec: tags},
		"nothing":                   {spec: `{"tags":{"a":"1"},"pool":"p"}`},
		"what needs a new VM":       {spec: `{"pool":"q","tags":{"a":"2"}}`, why: "needs a replacement: pool"},
		"another driver":            {spec: tags, change: func(s *spec) { s.Driver = "vm" }, why: `the driver changes from "sim" to "vm"`},
		"other credentials":         {spec: tags, change: func(s *spec) { s.CredentialsSecretRef = &infrav1.LocalReference{Name: "a"} }, why: "credentialsSecretRef"},
		"other failure domains":     {spec: tags, change: func(s *spec) { s.FailureDomains = []infrav1.Placement{{Name: "a"}} }, why: "failureDomains"},
		"the description of a node": {spec: tags, change: func(s *spec) { s.NodeTemplate = &infrav1.NodeTemplate{OperatingSystem: "linux"} }},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGiven(t)
			change := tc.change
			if change == nil {
				change = func(*spec) {}
			}
			desired := g.template("new", tc.spec, change)
			answer := g.askSet(desired)
			if answer["status"] != succeeded {
				t.Fatalf("answers %v", answer)
			}
			if message, _ := answer["message"].(string); tc.why != "" {
				if !strings.Contains(message, tc.why) || answer["infrastructureMachineTemplatePatch"] != nil {
					t.Errorf("answers %v, want it refused for %q", answer, tc.why)
				}
				return
			}
			var made canUpdateMachineSetAnswer
			text, _ := json.Marshal(answer)
			if err := json.Unmarshal(text, &made); err != nil {
				t.Fatal(err)
			}
			want, _ := json.Marshal([]any{map[string]any{"op": "replace", "path": "/spec/template/spec", "value": desired.Spec.Template.Spec}})
			if made.Patch == nil || made.Patch.PatchType != "JSONPatch" || !sameText(t, made.Patch.Patch, want) {
				t.Errorf("answers %v", answer)
			}
			if slices.Contains(g.journal(), sim.Updated) {
				t.Error("a VM was changed")
			}
		})
	}
}

func sameText(t *testing.T, got, want []byte) bool {
	t.Helper()
	var a, b any
	if json.Unmarshal(got, &a) != nil || json.Unmarshal(want, &b) != nil {
		return false
	}
	return cmp.Equal(a, b)
}

// journal is what became of the VMs.
func (g *given) journal() []sim.Effect {
	g.Helper()
	entries, err := g.cloud.Journal()
	if err != nil {
		g.Fatal(err)
	}
	var all []sim.Effect
	for _, entry := range entries {
		all = append(all, entry.Effect)
	}
	return all
}

// TestOneVMIsEnough: a single VM that differs in more keeps its MachineSet from an update in place. While it is not
// reported yet, it says nothing.
func TestOneVMIsEnough(t *testing.T) {
	g := newGiven(t)
	g.template("odd", `{"pool":"q","tags":{"a":"1"}}`)
	odd := g.machine("m3", "odd")
	desired := g.template("new", `{"pool":"p","tags":{"a":"2"}}`)
	answer := g.askSet(desired)
	if message := fmt.Sprint(answer["message"]); answer["infrastructureMachineTemplatePatch"] != nil ||
		!strings.Contains(message, odd.Spec.ProviderID) || !strings.Contains(message, "pool") {
		t.Errorf("answers %v", answer)
	}
	odd.Status.Ready = false
	if err := g.client.Status().Update(t.Context(), odd); err != nil {
		t.Fatal(err)
	}
	if answer := g.askSet(desired); answer["infrastructureMachineTemplatePatch"] == nil {
		t.Errorf("answers %v", answer)
	}
}

// secretReads counts how often Secrets are read.
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

// TestSecretsAreReadOnce: not for each VM of the MachineSet.
func TestSecretsAreReadOnce(t *testing.T) {
	g := newGiven(t)
	credentials := func(spec *infrav1.MillwrightMachineSpec) {
		spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "credentials"}
	}
	g.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "credentials"}, Data: map[string][]byte{"key": []byte("value")}})
	g.template("secret", `{"pool":"p"}`, credentials)
	for _, name := range []string{"m3", "m4", "m5"} {
		g.machine(name, "secret")
	}
	var machines []*infrav1.MillwrightMachine
	for _, name := range []string{"m3", "m4", "m5"} {
		machine := &infrav1.MillwrightMachine{}
		if err := g.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, machine); err != nil {
			t.Fatal(err)
		}
		machines = append(machines, machine)
	}
	reads := &secretReads{Reader: g.client}
	g.handler.Live = reads
	to := wanted{machines[0].Spec, "secret"}
	for round := range int32(2) { // a Secret may change before the next request
		if err := g.handler.ask(t.Context(), machines, to); err != nil {
			t.Fatal(err)
		}
		if got := reads.count.Load(); got != round+1 {
			t.Errorf("after %d requests Secrets were read %d times", round+1, got)
		}
	}
}

// TestCannotBeTold: nothing is replaced only because it could not be asked; Cluster API asks again.
func TestCannotBeTold(t *testing.T) {
	tags := `{"pool":"p","tags":{"a":"2"}}`
	for name, tc := range map[string]struct {
		given func(*given)
		says  string
	}{
		"the driver fails": {func(g *given) {
			g.replaceDriver(func(d *fake.Driver) { d.Fail(fake.UpdateMachine, codes.Unavailable, codes.Unavailable) })
		}, "Unavailable"},
		"the driver is away": {func(g *given) {
			g.handler.Drivers = registry.New(registry.Options{})
		}, `the driver "sim" is not registered`},
		"too many ask": {func(g *given) {
			for range mostAsking {
				g.handler.asking <- struct{}{}
			}
		}, "too many requests"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGiven(t)
			desired := g.template("new", tags)
			tc.given(g)
			answer := g.askSet(desired)
			if answer["status"] != failed || !strings.Contains(fmt.Sprint(answer["message"]), tc.says) {
				t.Errorf("answers %v, want %q", answer, tc.says)
			}
		})
	}
	t.Run("a class is missing", func(t *testing.T) {
		g := newGiven(t)
		answer := g.askSet(g.template("new", tags, func(s *infrav1.MillwrightMachineSpec) {
			s.ProviderSpec, s.MachineClassRef = nil, &infrav1.LocalReference{Name: "missing"}
		}))
		if answer["status"] != failed || !strings.Contains(fmt.Sprint(answer["message"]), `MachineClass "missing"`) {
			t.Errorf("answers %v", answer)
		}
	})
}

// replaceDriver puts a scripted driver in the place of the simulated one.
func (g *given) replaceDriver(script func(*fake.Driver)) {
	d := fake.New(fake.Config{})
	script(d)
	g.handler.Drivers = registry.Only("sim", d)
}

// TestTextsOfADriver: whatever a driver, or who writes a status, says, answers and logs are short and printable.
func TestTextsOfADriver(t *testing.T) {
	evil := "evil \x1b[2J\u009b5n\u202e\x00\xff" + strings.Repeat("\x1b", 3*longestText)
	type request = driver.UpdateMachineRequest
	type response = driver.UpdateMachineResponse
	for name, hook := range map[string]fake.Hook[request, response]{
		"refuses": func(context.Context, *request, func() (*response, error)) (*response, error) {
			return &response{Replacements: []string{evil}}, nil
		},
		"fails": func(context.Context, *request, func() (*response, error)) (*response, error) {
			return nil, status.Error(codes.Internal, evil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGiven(t)
			var said []string
			g.handler.Log = funcr.New(func(_, args string) { said = append(said, args) }, funcr.Options{})
			desired := g.template("new", `{"pool":"p","tags":{"a":"2"}}`)
			g.replaceDriver(func(d *fake.Driver) { d.OnUpdate(hook) })
			message, _ := g.askSet(desired)["message"].(string)
			for _, text := range append(said, message) {
				if !strings.Contains(text, "evil") || len(text) > 2*longestText || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Errorf("%d bytes: %.200q", len(text), text)
				}
			}
		})
	}
	machine := &infrav1.MillwrightMachine{}
	machine.Name, machine.Annotations = evil, map[string]string{}
	made := updateMachineAnswer{}
	_, made.Message = progress(machine, nil)
	if made.clean(); strings.Contains(made.Message, "\x1b") || len(made.Message) > longestText {
		t.Errorf("says %.200q", made.Message)
	}
}

// TestDriverThatCannot: with a driver that changes no VMs, all is as without the hooks.
func TestDriverThatCannot(t *testing.T) {
	g := newGiven(t)
	desired := g.template("new", `{"pool":"p","tags":{"a":"2"}}`)
	g.replaceDriver(func(d *fake.Driver) { d.Fail(fake.UpdateMachine, codes.Unimplemented, codes.Unimplemented) })
	answer := g.askSet(desired)
	if answer["status"] != succeeded || answer["infrastructureMachineTemplatePatch"] != nil || !strings.Contains(fmt.Sprint(answer["message"]), "cannot change VMs") {
		t.Errorf("answers %v", answer)
	}
}

// TestCanUpdateMachine: of a control plane.
func TestCanUpdateMachine(t *testing.T) {
	g := newGiven(t)
	machine := &infrav1.MillwrightMachine{}
	if err := g.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "m1"}, machine); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		spec string
		can  bool
	}{"can": {`{"pool":"p","tags":{"a":"2"}}`, true}, "cannot": {`{"pool":"q"}`, false}} {
		t.Run(name, func(t *testing.T) {
			template := g.template(name, tc.spec)
			desired := machine.DeepCopy()
			desired.Spec.ProviderSpec = template.Spec.Template.Spec.ProviderSpec
			desired.Annotations[core.AnnotationClonedFrom] = name
			owner := map[string]any{"metadata": map[string]any{"name": "m1", "namespace": namespace}}
			answer := g.ask("CanUpdateMachine", map[string]any{
				"current": map[string]any{"machine": owner, "infrastructureMachine": object(infrav1.MillwrightMachineKind, machine, machine.Spec)},
				"desired": map[string]any{"machine": owner, "infrastructureMachine": object(infrav1.MillwrightMachineKind, desired, desired.Spec)},
			})
			if answer["status"] != succeeded || (answer["infrastructureMachinePatch"] != nil) != tc.can {
				t.Errorf("answers %v", answer)
			}
		})
	}
}

// TestUpdateMachine (I3): what the controller says of the object that Cluster API has changed.
func TestUpdateMachine(t *testing.T) {
	condition := func(status metav1.ConditionStatus, reason string, generation int64) *metav1.Condition {
		return &metav1.Condition{Type: infrav1.ConditionUpToDate, Status: status, Reason: reason, Message: "because", ObservedGeneration: generation}
	}
	for name, tc := range map[string]struct {
		condition *metav1.Condition
		unseen    bool
		retry     float64
		says      string
	}{
		"not begun":         {retry: soon, says: "begins"},
		"the change unseen": {unseen: true, condition: condition(metav1.ConditionTrue, infrav1.ReasonUpdated, 2), retry: soon, says: "not seen yet"},
		"done before it":    {condition: condition(metav1.ConditionTrue, infrav1.ReasonUpdated, 1), retry: soon, says: "begins"},
		"under way":         {condition: condition(metav1.ConditionFalse, infrav1.ReasonUpdating, 2), retry: soon, says: "because"},
		"fails":             {condition: condition(metav1.ConditionFalse, infrav1.ReasonUpdateFailed, 2), retry: later, says: "because"},
		"cannot be":         {condition: condition(metav1.ConditionFalse, infrav1.ReasonReplacementNeeded, 2), retry: later, says: "because"},
		"done":              {condition: condition(metav1.ConditionTrue, infrav1.ReasonUpdated, 2), says: "is as the spec says"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGiven(t)
			machine := &infrav1.MillwrightMachine{}
			if err := g.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "m1"}, machine); err != nil {
				t.Fatal(err)
			}
			machine.Generation = 2
			machine.Annotations[core.AnnotationUpdateInProgress] = ""
			machine.Spec.ProviderSpec = raw(`{"tags":{"a":"2"},"pool":"p"}`)
			if err := g.client.Update(t.Context(), machine); err != nil {
				t.Fatal(err)
			}
			if tc.condition != nil {
				apimeta.SetStatusCondition(&machine.Status.Conditions, *tc.condition)
				if err := g.client.Status().Update(t.Context(), machine); err != nil {
					t.Fatal(err)
				}
			}
			desired := machine.DeepCopy()
			desired.Spec.ProviderSpec = raw(`{"pool":"p","tags":{"a":"2"}}`) // written in another way
			if tc.unseen {
				desired.Spec.ProviderSpec = raw(`{"pool":"p","tags":{"a":"3"}}`)
			}
			answer := g.ask("UpdateMachine", map[string]any{"desired": map[string]any{
				"machine":               map[string]any{"metadata": map[string]any{"name": "m1", "namespace": namespace}},
				"infrastructureMachine": object(infrav1.MillwrightMachineKind, desired, desired.Spec),
			}})
			if answer["status"] != succeeded || answer["retryAfterSeconds"] != tc.retry || !strings.Contains(fmt.Sprint(answer["message"]), tc.says) {
				t.Errorf("answers %v, want %v and %q", answer, tc.retry, tc.says)
			}
		})
	}
}

// TestNonsense: whatever is sent is answered, and nothing is asked or changed.
func TestNonsense(t *testing.T) {
	g := newGiven(t)
	others := map[string]any{
		"machineSet":                    map[string]any{"metadata": map[string]any{"name": "set", "namespace": namespace}},
		"infrastructureMachineTemplate": map[string]any{"apiVersion": "example.com/v1", "kind": "OtherTemplate", "metadata": map[string]any{"name": "old"}},
	}
	if answer := g.ask("CanUpdateMachineSet", map[string]any{"current": others, "desired": others}); answer["status"] != succeeded ||
		answer["infrastructureMachineTemplatePatch"] != nil {
		t.Errorf("another provider's template: %v", answer)
	}
	for _, hook := range g.handler.hooks {
		if answer := g.ask(hook, map[string]any{}); answer["infrastructureMachineTemplatePatch"] != nil || answer["infrastructureMachinePatch"] != nil || answer["status"] == succeeded && answer["retryAfterSeconds"] == 0.0 {
			t.Errorf("%s without objects: %v", hook, answer)
		}
		path := strings.ToLower(hook) + "/" + strings.ToLower(hook)
		for _, body := range []string{"", "[]", "{", `{"current":3}`, `{"desired":"x"}`} {
			if response := g.post(path, []byte(body)); response.Code != http.StatusBadRequest && response.Code != http.StatusOK {
				t.Errorf("%s: %q is answered with %d", hook, body, response.Code)
			}
		}
		if response := g.post(path, bytes.Repeat([]byte(" "), longestRequest+1)); response.Code != http.StatusBadRequest {
			t.Errorf("%s: a long request is answered with %d", hook, response.Code)
		}
	}
	if response := g.post("other/other", []byte("{}")); response.Code != http.StatusNotFound {
		t.Errorf("another hook is answered with %d", response.Code)
	}
}
