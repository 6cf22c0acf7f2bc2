package vm

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/lru"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/test/support/tier"
)

var vms = vmv1alpha1.Resource("virtualmachines")

func TestDriver_ErrorCodes(t *testing.T) {
	cases := map[codes.Code][]error{
		codes.Canceled:         {context.Canceled, &url.Error{Err: context.Canceled}},
		codes.DeadlineExceeded: {context.DeadlineExceeded, apierrors.NewTimeoutError("slow", 1), apierrors.NewServerTimeout(vms, "get", 1)},
		codes.Aborted: {
			apierrors.NewConflict(vms, "m", errors.New("changed")), apierrors.NewAlreadyExists(vms, "m"), apierrors.NewNotFound(vms, "m"),
		},
		codes.InvalidArgument:  {apierrors.NewInvalid(vmv1alpha1.Kind("VirtualMachine"), "m", nil), apierrors.NewBadRequest("bad")},
		codes.Unauthenticated:  {apierrors.NewUnauthorized("who?")},
		codes.PermissionDenied: {apierrors.NewForbidden(vms, "m", errors.New("no"))},
		codes.Unavailable: {
			apierrors.NewTooManyRequests("later", 1), apierrors.NewServiceUnavailable("starting"), &url.Error{Op: "Get", URL: "https://x", Err: errors.New("refused")},
		},
		codes.Internal: {apierrors.NewInternalError(errors.New("webhook"))},
		codes.Unknown:  {errors.New("whatever")},
		codes.DataLoss: {fmt.Errorf("wrapped: %w", status.Error(codes.DataLoss, "already has a code"))},
	}
	for want, errs := range cases {
		for _, given := range errs {
			err := coded("doing", given)
			if got := status.Code(err); got != want || !errors.Is(err, given) {
				t.Errorf("got %[2]v for %[1]v, want code %[3]v", given, err, want)
			}
			if strings.Contains(err.Error(), "https://") {
				t.Errorf("%q contains the URL of the request", err)
			}
		}
	}
}

// Names and hashes are stored in clusters, so they must never change.
func TestName_IsStable(t *testing.T) {
	cases := map[string]identity{
		"pool-a-1-4sn4x54za6qu": {"", v1alpha1.GroupName, "default", "pool-a-1"},
		"a-b-73fqnbfodk6n":      {"east", v1alpha1.GroupName, "shop", "a.b"},
	}
	for want, i := range cases {
		if got := i.name(); got != want {
			t.Errorf("got name of %+v %s, want %s", i, got, want)
		}
	}
}

// Names are valid and unique, and the identity can be read from the object.
func TestName_IsValidAndUnique(t *testing.T) {
	texts := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "a", "a.b", "a-b", strings.Repeat("a", 60), strings.Repeat("a", 59) + ".b"}))
	name := rapid.StringMatching(`[a-z0-9]([-a-z0-9]{0,60}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,60}[a-z0-9])?){0,3}`)
	any := rapid.Custom(func(t *rapid.T) identity {
		return identity{strings.ToValidUTF8(texts.Draw(t, "installation"), ""), v1alpha1.GroupName, name.Draw(t, "namespace"), name.Draw(t, "machine")}
	})
	tier.Check(t, func(t *rapid.T) {
		a, b := any.Draw(t, "a"), any.Draw(t, "b")
		if wrong := validation.IsDNS1123Label(a.name()); len(wrong) > 0 {
			t.Fatalf("%q: %v", a.name(), wrong)
		}
		if a != b && a.name() == b.name() {
			t.Fatalf("%+v and %+v both have the name %s", a, b, a.name())
		}
		if got, ok := identityOf(&metav1.ObjectMeta{Name: a.name(), Annotations: map[string]string{AnnotationIdentity: a.annotation()}}); !ok || got != a {
			t.Fatalf("got %+[2]v, %[3]v for %+[1]v", a, got, ok)
		}
		for key, value := range a.labels() {
			if len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0 {
				t.Fatalf("%s=%s is not a valid label", key, value)
			}
		}
	})
}

// The number of cached clients is limited.
func TestClient_IsCached(t *testing.T) {
	secret := func(i int) *corev1.Secret {
		return &corev1.Secret{Data: map[string][]byte{kubeconfigKey: fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
			"clusters": [{"name": "c", "cluster": {"server": "https://host-%d"}}],
			"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {"token": "t"}}]}`, i)}}
	}
	c := clusters{recent: lru.New(maxClients)}
	get := func(i int) any {
		t.Helper()
		got, err := c.get(secret(i))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	first, second := get(0), get(1)
	for i := range maxClients - 2 {
		get(i + 2)
	}
	if get(0) != first {
		t.Error("a client was created twice")
	}
	get(maxClients)
	if get(0) != first {
		t.Error("a client that was just used was evicted")
	}
	if get(1) == second || c.recent.Len() != maxClients {
		t.Errorf("%d clients are cached, want %d", c.recent.Len(), maxClients)
	}
}

// TestFailureDomain_OfHosts: failure domains are zones, and hosts without a zone.
func TestFailureDomain_OfHosts(t *testing.T) {
	const zone, hostname = corev1.LabelTopologyZone, corev1.LabelHostname
	type labels = map[string]string
	for name, tc := range map[string]struct {
		hosts []labels
		want  map[string]string // label by failure domain
	}{
		"no hosts":           {want: labels{}},
		"zones":              {hosts: []labels{{zone: "b", hostname: "h1"}, {zone: "a", hostname: "h2"}, {zone: "b", hostname: "h3"}}, want: labels{"a": zone, "b": zone}},
		"no zones":           {hosts: []labels{{hostname: "h2"}, {hostname: "h1"}}, want: labels{"h1": hostname, "h2": hostname}},
		"some have none":     {hosts: []labels{{zone: "a", hostname: "h1"}, {hostname: "h2"}}, want: labels{"a": zone, "h2": hostname}},
		"a zone like a host": {hosts: []labels{{hostname: "x"}, {zone: "x", hostname: "h2"}}, want: labels{"x": zone}},
		"a host like a zone": {hosts: []labels{{zone: "x", hostname: "h2"}, {hostname: "x"}}, want: labels{"x": zone}},
		"an empty zone":      {hosts: []labels{{zone: "", hostname: "h1"}}, want: labels{}},
		"no labels":          {hosts: []labels{nil}, want: labels{}},
		"invalid labels":     {hosts: []labels{{zone: strings.Repeat("z", 64)}, {hostname: strings.Repeat("h", 64)}}, want: labels{}},
	} {
		t.Run(name, func(t *testing.T) {
			found := domains{}
			for _, labels := range tc.hosts { // each on its own page
				found.add([]metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{Labels: labels}}})
			}
			got, last := labels{}, ""
			for _, domain := range found.sorted() {
				if domain.Name <= last {
					t.Errorf("failure domain %s comes after %s", domain.Name, last)
				}
				got[domain.Name], last = domain.Attributes[AttributeLabel], domain.Name
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("failure domains (-want +got):\n%s", diff)
			}
		})
	}
}

// TestProviderSpec_RejectsOtherTypes: the error for a specification of another type uses JSON terms, not Go types.
func TestProviderSpec_RejectsOtherTypes(t *testing.T) {
	for raw, want := range map[string]string{
		`"small"`: "providerSpec: unexpected string",
		`["a"]`:   "providerSpec: unexpected array",
		`1`:       "providerSpec: unexpected number",
	} {
		_, err := parseSpec([]byte(raw))
		if found, _ := status.FromError(err); found.Code() != codes.InvalidArgument || found.Message() != want {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

// TestVM_NodeNameTooLong checks that a machine whose node could not have its name is refused. With Cluster API, the
// node has the name of the VM, which is shortened.
func TestVM_NodeNameTooLong(t *testing.T) {
	for name, tc := range map[string]struct {
		machine, apiGroup string
		want              codes.Code
	}{
		"longest":     {strings.Repeat("m", 63), v1alpha1.GroupName, codes.OK},
		"too long":    {strings.Repeat("m", 64), v1alpha1.GroupName, codes.InvalidArgument},
		"Cluster API": {strings.Repeat("m", 64), driver.APIGroupClusterAPI, codes.OK},
	} {
		c := call{identity: identity{APIGroup: tc.apiGroup, Machine: tc.machine}}
		c.key.Name = c.identity.name()
		if err := c.checkNodeName(); status.Code(err) != tc.want {
			t.Errorf("%s: %v, want code %v", name, err, tc.want)
		}
	}
}

// TestSchedulerMessage_OfVMWithoutPod checks that the error of a creation names what the VM lacks, such as an address.
func TestSchedulerMessage_OfVMWithoutPod(t *testing.T) {
	object, want := &vmv1alpha1.VirtualMachine{}, "InClusterIPPool vms/small has no free address"
	object.Status.Conditions = []metav1.Condition{{Type: vmv1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: vmv1alpha1.ReasonAddressPoolExhausted, Message: want}}
	if got := schedulerMessage(object); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	object.Status.Conditions = append(object.Status.Conditions, metav1.Condition{Type: vmv1alpha1.ConditionScheduled, Message: "0/3 nodes are available"})
	if got := schedulerMessage(object); got != "0/3 nodes are available" {
		t.Errorf("got %q", got)
	}
}
