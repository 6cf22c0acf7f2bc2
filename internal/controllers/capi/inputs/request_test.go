package inputs

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

var update = flag.Bool("update", false, "write the golden files")

func raw(text string) *runtime.RawExtension { return &runtime.RawExtension{Raw: []byte(text)} }

func machine() *infrav1.MillwrightMachine {
	m := &infrav1.MillwrightMachine{ObjectMeta: metav1.ObjectMeta{
		Name: "md-0-abcde", Namespace: "team", UID: "5b6f", Generation: 2, ResourceVersion: "17",
		CreationTimestamp: metav1.NewTime(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)),
		Labels:            map[string]string{"cluster.x-k8s.io/cluster-name": "prod", "node.machine.sapcloud.io/force-deletion": "True"},
		Annotations:       map[string]string{"cluster.x-k8s.io/cloned-from-name": "workers-v2"},
		Finalizers:        []string{infrav1.Finalizer},
		OwnerReferences:   []metav1.OwnerReference{{Kind: "Machine", Name: "md-0-abcde"}},
	}}
	m.Spec = infrav1.MillwrightMachineSpec{Driver: "vm", ProviderID: "millwright:///vms/0001", ProviderSpec: raw(`{"size":"small","tags":{"a":"b"}}`)}
	m.Status.LastKnownState = "the driver's own"
	return m
}

// TestRequest_MatchesGoldenFiles compares the complete requests to the driver with golden files.
func TestRequest_MatchesGoldenFiles(t *testing.T) {
	class := &v1alpha1.MachineClass{
		ObjectMeta: metav1.ObjectMeta{
			Name: "small", Namespace: "team", UID: "c1a5", Generation: 3, Labels: map[string]string{"of": "users"},
			Annotations: map[string]string{"of": "users", "driver.millwright.dev/api-group": "forged"}, Finalizers: []string{infrav1.ClassFinalizer},
		},
		Provider: "vm", ProviderSpec: *raw(`{"size":"large","tags":{"a":"b","c":"d"}}`),
		SecretRef: &corev1.SecretReference{Name: "cloud"}, CredentialsSecretRef: &corev1.SecretReference{Name: "cloud"},
		NodeTemplate: &v1alpha1.NodeTemplate{Capacity: capacity("cpu", "4", "gpu", "0"), InstanceType: "large", Region: "r", Zone: "z"},
	}
	for name, src := range map[string]source{
		"own-spec": {Machine: machine()},
		"class":    {Machine: with(func(m *infrav1.MillwrightMachine) { m.Spec.ProviderSpec = nil }), Class: class},
		"everything": {
			Machine: with(func(m *infrav1.MillwrightMachine) {
				m.Spec.ProviderSpec, m.Spec.FailureDomain = nil, "b"
				m.Spec.NodeTemplate = &infrav1.NodeTemplate{Capacity: capacity("memory", "8Gi"), InstanceType: "own", Architecture: "arm64"}
				m.Spec.FailureDomains = []infrav1.Placement{{Name: "a"}, {Name: "b", ProviderSpec: raw(`{"zone":"b","tags":{"c":null,"e":1.50}}`)}}
			}),
			Class: class, Secret: map[string][]byte{"userData": []byte("of others"), "userDataFormat": []byte("theirs"), "token": []byte("secret")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := src.Machine.DeepCopy()
			objects, err := request(t.Context(), src)
			if err != nil {
				t.Fatal(err)
			}
			got, err := yaml.Marshal(map[string]any{"machine": objects.Machine, "class": objects.Class, "secret": objects.Secret})
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", name+".yaml")
			if *update {
				if err := os.WriteFile(path, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, src.Machine); diff != "" {
				t.Errorf("the machine was changed:\n%s", diff)
			}
		})
	}
}

func with(change func(*infrav1.MillwrightMachine)) *infrav1.MillwrightMachine {
	m := machine()
	change(m)
	return m
}

func capacity(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

func TestRequest_RejectsInvalidFailureDomain(t *testing.T) {
	if _, err := request(t.Context(), source{Machine: with(func(m *infrav1.MillwrightMachine) { m.Spec.FailureDomain = "a" })}); !errors.Is(err, errFailureDomain) {
		t.Errorf("unknown failure domain: %v", err)
	}
	broken := with(func(m *infrav1.MillwrightMachine) {
		m.Spec.FailureDomain, m.Spec.FailureDomains = "a", []infrav1.Placement{{Name: "a", ProviderSpec: raw(`{"zone":`)}}
	})
	if _, err := request(t.Context(), source{Machine: broken}); err == nil || errors.Is(err, errFailureDomain) {
		t.Errorf("broken patch: %v", err)
	}
}

// TestMerge checks the rules of RFC 7396.
func TestMerge(t *testing.T) {
	for _, tc := range []struct{ object, patch, want string }{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":"foo"}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
		{`{"e":null}`, `{"a":1}`, `{"a":1,"e":null}`},
		{`{"big":12345678901234567890}`, `{}`, `{"big":12345678901234567890}`},
		{``, `{"a":1}`, `{"a":1}`},
	} {
		got, err := merge([]byte(tc.object), []byte(tc.patch))
		if err != nil || string(got) != tc.want {
			t.Errorf("%s and %s: %s, %v; want %s", tc.object, tc.patch, got, err, tc.want)
		}
	}
}

// TestTemplateStatus checks the capacity and node information for autoscalers (T4).
func TestTemplateStatus(t *testing.T) {
	type status = infrav1.MillwrightMachineTemplateStatus
	for name, tc := range map[string]struct {
		class *v1alpha1.NodeTemplate
		own   *infrav1.NodeTemplate
		want  status
	}{
		"empty": {},
		"class": {
			class: &v1alpha1.NodeTemplate{Capacity: capacity("cpu", "4", "memory", "8Gi", "gpu", "2"), Architecture: new("arm64")},
			want: status{
				Capacity: capacity("cpu", "4", "memory", "8Gi", "nvidia.com/gpu", "2"),
				NodeInfo: &infrav1.NodeInfo{Architecture: "arm64", OperatingSystem: "linux"},
			},
		},
		"no accelerators": {
			class: &v1alpha1.NodeTemplate{Capacity: capacity("cpu", "4", "gpu", "0")}, want: status{Capacity: capacity("cpu", "4")},
		},
		"template overrides class": {
			class: &v1alpha1.NodeTemplate{Capacity: capacity("cpu", "4", "memory", "8Gi"), Architecture: new("arm64")},
			own:   &infrav1.NodeTemplate{Capacity: capacity("cpu", "8"), Architecture: "amd64", OperatingSystem: "windows"},
			want: status{
				Capacity: capacity("cpu", "8", "memory", "8Gi"), NodeInfo: &infrav1.NodeInfo{Architecture: "amd64", OperatingSystem: "windows"},
			},
		},
		"unknown architecture": {class: &v1alpha1.NodeTemplate{Architecture: new("mips")}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, TemplateStatus(tc.class, tc.own)); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
		})
	}
}

// placer is a driver that supports all failure domains, unless err is set.
type placer struct {
	driver.FailureDomains
	err error
}

func (p placer) PlaceMachine(_ context.Context, req *driver.PlaceMachineRequest) (*driver.PlaceMachineResponse, error) {
	spec, err := driver.WithField(req.MachineClass.ProviderSpec, "zone", req.FailureDomain)
	return &driver.PlaceMachineResponse{ProviderSpec: spec}, errors.Join(p.err, err)
}

// TestRequest_FailureDomain checks that the machine's failure domains take precedence over those of the driver.
func TestRequest_FailureDomain(t *testing.T) {
	for name, tc := range map[string]struct {
		own    []infrav1.Placement
		placer driver.FailureDomains
		want   string // empty if an error is expected
		// unknown is set if the error is errFailureDomain. errText is part of the error.
		unknown bool
		errText string
	}{
		"driver":                          {placer: placer{}, want: `{"size":"small","tags":{"a":"b"},"zone":"a"}`},
		"driver, other domain in machine": {own: []infrav1.Placement{{Name: "b"}}, placer: placer{}, want: `{"size":"small","tags":{"a":"b"},"zone":"a"}`},
		"machine":                         {own: []infrav1.Placement{{Name: "a", ProviderSpec: raw(`{"zone":"own"}`)}}, placer: placer{}, want: `{"size":"small","tags":{"a":"b"},"zone":"own"}`},
		"machine without a patch":         {own: []infrav1.Placement{{Name: "a"}}, placer: placer{}, want: `{"size":"small","tags":{"a":"b"}}`},
		"no driver":                       {unknown: true, errText: `"a"`},
		"driver without support":          {placer: placer{err: status.Error(codes.Unimplemented, "no")}, unknown: true, errText: `"a"`},
		"unknown to the driver":           {placer: placer{err: status.Error(codes.NotFound, "odd name")}, unknown: true, errText: "odd name"},
		"invalid specification":           {placer: placer{err: status.Error(codes.InvalidArgument, "no object")}, errText: "no object"},
	} {
		t.Run(name, func(t *testing.T) {
			m := with(func(m *infrav1.MillwrightMachine) { m.Spec.FailureDomain, m.Spec.FailureDomains = "a", tc.own })
			objects, err := request(t.Context(), source{Machine: m, Placer: tc.placer})
			if tc.want == "" {
				if err == nil || errors.Is(err, errFailureDomain) != tc.unknown || !strings.Contains(err.Error(), tc.errText) {
					t.Errorf("error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := string(objects.Class.ProviderSpec.Raw); got != tc.want || objects.Class.NodeTemplate.Zone != "a" {
				t.Errorf("specification %s, zone %q; want %s", got, objects.Class.NodeTemplate.Zone, tc.want)
			}
		})
	}
}

func TestRequest_WithoutFailureDomain(t *testing.T) {
	objects, err := request(t.Context(), source{Machine: machine(), Placer: placer{err: status.Error(codes.Internal, "unexpected call")}})
	if err != nil || objects.Class.NodeTemplate != nil {
		t.Errorf("without a failure domain: %+v, %v", objects.Class, err)
	}
}
