package virtualmachine

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	testingclock "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	"github.com/millwright-dev/millwright/test/support/fakeclient"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// The network of the property test has the automatic addresses .16 to .30. The pools overlap each other at .9, and the
// automatic addresses at .16.
var (
	tinyNetwork = netip.MustParsePrefix("10.0.0.0/27")
	tinyPools   = map[string][]string{"a": {"10.0.0.8", "10.0.0.9"}, "b": {"10.0.0.9", "10.0.0.16"}}
	tinyVMs     = []string{"v0", "v1", "v2", "v3", "v4"}
	tinyChoices = []string{"10.0.0.8", "10.0.0.9", "10.0.0.16", "10.0.0.17"}
)

// addressWorld is a fake API server with VMs, IP address pools and their provider, and the VM controllers that lead one
// after the other.
type addressWorld struct {
	*rapid.T
	live       client.WithWatch
	authority  *identity.Authority
	controller *Controller
	clock      *testingclock.FakeClock
	uids       int
	// writes is the number of writes that the controller can still make before it crashes. If it is negative, the
	// controller does not crash.
	writes int
	// seen has the names of the Pods that were checked.
	seen map[string]bool
}

func newAddressWorld(t *rapid.T, authority *identity.Authority) *addressWorld {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{{Group: ipamGroup, Version: "v1beta2"}, {Group: ipamGroup, Version: "v1alpha2"}})
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	mapper.Add(v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.VirtualMachineKind), meta.RESTScopeNamespace)
	for _, kind := range []schema.GroupVersionKind{claimKind.WithVersion("v1beta2"), addressKind.WithVersion("v1beta2"), {Group: ipamGroup, Version: "v1alpha2", Kind: "InClusterIPPool"}} {
		mapper.Add(kind, meta.RESTScopeNamespace)
		scheme.AddKnownTypeWithName(kind, &unstructured.Unstructured{})
		scheme.AddKnownTypeWithName(kind.GroupVersion().WithKind(kind.Kind+"List"), &unstructured.UnstructuredList{})
	}
	builder := fakeclient.NewBuilder(scheme).WithRESTMapper(mapper).WithStatusSubresource(&v1alpha1.VirtualMachine{}, &corev1.Pod{})
	if err := addIndexes(context.Background(), builderIndexer{builder}); err != nil {
		t.Fatal(err)
	}
	w := &addressWorld{
		T: t, live: builder.Build(), authority: authority, clock: testingclock.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)),
		seen: map[string]bool{},
	}
	for name := range tinyPools {
		w.must(w.live.Create(context.Background(), w.object("InClusterIPPool", name, map[string]any{})))
	}
	w.lead()
	return w
}

func (w *addressWorld) must(err error) {
	if err != nil {
		w.Fatal(err)
	}
}

func (w *addressWorld) object(kind, name string, content map[string]any) *unstructured.Unstructured {
	return (&testEnv{namespace: "default"}).ipamObject(kind, name, content)
}

// lead starts another controller, which knows only what is stored.
func (w *addressWorld) lead() {
	w.writes = -1
	crashing := interceptor.NewClient(w.live, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
			w.uids++
			object.SetUID(types.UID(fmt.Sprint("uid-", w.uids)))
			return w.write(func() error { return c.Create(ctx, object, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			if object.GetObjectKind().GroupVersionKind().Group == ipamGroup {
				w.Fatalf("the controller deletes %s", object.GetName())
			}
			return w.write(func() error { return c.Delete(ctx, object, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return w.write(func() error { return c.Patch(ctx, object, patch, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			return w.write(func() error { return c.SubResource(sub).Patch(ctx, object, patch, opts...) })
		},
	})
	w.controller = New(Options{
		Client: crashing, APIReader: w.live, Events: record.NewFakeRecorder(1000), Clock: w.clock, Image: "hypervisor:test",
		Endpoint: "controller:1", Authority: w.authority, Networks: []netip.Prefix{tinyNetwork},
	})
}

// write makes a write of the controller, unless it has crashed.
func (w *addressWorld) write(write func() error) error {
	if w.writes == 0 {
		return context.Canceled
	}
	w.writes--
	return write()
}

func (w *addressWorld) vms() []v1alpha1.VirtualMachine {
	list := &v1alpha1.VirtualMachineList{}
	w.must(w.live.List(context.Background(), list))
	return list.Items
}

func (w *addressWorld) pods() []corev1.Pod {
	list := &corev1.PodList{}
	w.must(w.live.List(context.Background(), list))
	return list.Items
}

func (w *addressWorld) list(kind string) []unstructured.Unstructured {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(w.object(kind, "", map[string]any{}).GroupVersionKind().GroupVersion().WithKind(kind + "List"))
	w.must(w.live.List(context.Background(), list))
	return list.Items
}

// pick returns one of the elements, or nil if there is none.
func pick[E any](t *rapid.T, label string, all []E) *E {
	if len(all) == 0 {
		return nil
	}
	return &all[rapid.IntRange(0, len(all)-1).Draw(t, label)]
}

// declare creates a VM with automatic addresses, with requested ones, or with a pool.
func (w *addressWorld) declare() {
	names := slices.Clone(tinyVMs)
	for _, vm := range w.vms() {
		names = slices.DeleteFunc(names, func(name string) bool { return name == vm.Name })
	}
	name := pick(w.T, "name", names)
	if name == nil {
		return
	}
	w.uids++
	vm := fixture.In("default", fixture.Named(*name, fixture.VirtualMachine()))
	vm.UID, vm.CreationTimestamp, vm.Spec.VolumeClaimTemplate = types.UID(fmt.Sprint("uid-", w.uids)), metav1.NewTime(w.clock.Now()), nil
	switch rapid.SampledFrom([]string{"automatic", "requested", "pool", "pool", "pool"}).Draw(w.T, "addresses") {
	case "requested":
		vm.Spec.VMIPs = []string{rapid.SampledFrom(tinyChoices).Draw(w.T, "address")}
	case "pool":
		vm.Spec.AddressesFromPools = []v1alpha1.IPPoolReference{poolNamed(rapid.SampledFrom([]string{"a", "b"}).Draw(w.T, "pool"))}
	}
	w.must(w.live.Create(context.Background(), vm))
}

// pass reconciles a VM, which may be gone.
func (w *addressWorld) pass() { w.reconcile(rapid.SampledFrom(tinyVMs).Draw(w.T, "vm")) }

func (w *addressWorld) reconcile(name string) {
	_, _ = w.controller.Reconcile(context.Background(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: name}})
	w.clock.Step(time.Minute)
}

// crash reconciles a VM with a controller that crashes before one of its writes. Another controller then leads.
func (w *addressWorld) crash() {
	w.writes = rapid.IntRange(0, 5).Draw(w.T, "writes")
	w.pass()
	w.lead()
}

// provide is the IPAM provider: it gives a claim the lowest free address of its pool, if there is one, and releases the
// addresses of deleted claims. The garbage collector deletes the claims of deleted VMs.
func (w *addressWorld) provide() {
	ctx, used, claims, addresses := context.Background(), map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, claim := range w.list("IPAddressClaim") {
		owner := metav1.GetControllerOf(&claim)
		if !slices.ContainsFunc(w.vms(), func(vm v1alpha1.VirtualMachine) bool { return vm.UID == owner.UID }) {
			w.must(w.live.Delete(ctx, &claim))
			continue
		}
		claims[claim.GetName()] = true
	}
	for _, address := range w.list("IPAddress") {
		if !claims[address.GetName()] {
			w.must(w.live.Delete(ctx, &address))
			continue
		}
		addresses[address.GetName()] = true
		used[text(&address, "spec", "poolRef", "name")+text(&address, "spec", "address")] = true
	}
	for _, claim := range w.list("IPAddressClaim") {
		pool := text(&claim, "spec", "poolRef", "name")
		free := slices.IndexFunc(tinyPools[pool], func(address string) bool { return !used[pool+address] })
		switch {
		case text(&claim, "status", "addressRef", "name") != "":
			continue
		case addresses[claim.GetName()]: // of an earlier claim with this name
		case free < 0:
			continue
		default:
			used[pool+tinyPools[pool][free]] = true
			ref, _, _ := unstructured.NestedMap(claim.Object, "spec", "poolRef")
			w.must(w.live.Create(ctx, w.object("IPAddress", claim.GetName(), map[string]any{"spec": map[string]any{
				"claimRef": map[string]any{"name": claim.GetName()}, "poolRef": ref, "address": tinyPools[pool][free], "prefix": int64(tinyNetwork.Bits()),
			}})))
		}
		claim.Object["status"] = map[string]any{"addressRef": map[string]any{"name": claim.GetName()}}
		w.must(w.live.Update(ctx, &claim))
	}
}

// changePool changes the pool of a VM that requests no address.
func (w *addressWorld) changePool() {
	vm := pick(w.T, "vm", w.vms())
	if vm == nil || len(vm.Spec.VMIPs) > 0 {
		return
	}
	vm.Spec.AddressesFromPools = nil
	if pool := rapid.SampledFrom([]string{"a", "b", ""}).Draw(w.T, "pool"); pool != "" {
		vm.Spec.AddressesFromPools = []v1alpha1.IPPoolReference{poolNamed(pool)}
	}
	w.must(w.live.Update(context.Background(), vm))
}

// end terminates a guest.
func (w *addressWorld) end() {
	if pod := pick(w.T, "pod", w.pods()); pod != nil && podstate.Alive(pod) {
		pod.Status.Phase = corev1.PodFailed
		w.must(w.live.Status().Update(context.Background(), pod))
	}
}

// remove deletes a VM. Its guest terminates when a pass deletes its Pod.
func (w *addressWorld) remove() {
	if vm := pick(w.T, "vm", w.vms()); vm != nil {
		w.must(client.IgnoreNotFound(w.live.Delete(context.Background(), vm)))
	}
}

// removeClaim deletes a claim in the role of a careless user.
func (w *addressWorld) removeClaim() {
	if claim := pick(w.T, "claim", w.list("IPAddressClaim")); claim != nil {
		w.must(w.live.Delete(context.Background(), claim))
	}
}

// check checks that no two guests have the same address, and that the guests of VMs with pools have started with the
// addresses of their claims.
func (w *addressWorld) check() {
	holders := map[string]string{}
	for _, pod := range w.pods() {
		if !podstate.Alive(&pod) {
			continue
		}
		has := podspec.Addresses(&pod)
		for _, address := range has {
			if other := holders[address]; other != "" {
				w.Fatalf("the guests in %s and %s have the address %s", other, pod.Name, address)
			}
			holders[address] = pod.Name
		}
		if w.seen[pod.Name] {
			continue
		}
		w.seen[pod.Name] = true
		if want := w.claimed(&pod); want != nil && !slices.Equal(has, want) {
			w.Fatalf("the guest in %s started with %v, but the claim has %v", pod.Name, has, want)
		}
	}
}

// claimed returns the addresses of the claims of a Pod's VM, or nil if the VM uses no pools.
func (w *addressWorld) claimed(pod *corev1.Pod) []string {
	vm := &v1alpha1.VirtualMachine{}
	w.must(w.live.Get(context.Background(), client.ObjectKey{Namespace: pod.Namespace, Name: metav1.GetControllerOf(pod).Name}, vm))
	var addresses []string
	for _, pool := range vm.Spec.AddressesFromPools {
		address := w.object("IPAddress", "", map[string]any{})
		w.must(w.live.Get(context.Background(), client.ObjectKey{Namespace: vm.Namespace, Name: claimNameFor(vm, pool)}, address))
		addresses = append(addresses, text(address, "spec", "address"))
	}
	return addresses
}

// TestAddresses_NoneIsUsedTwice checks random sequences of creations, changes, starts, terminations, deletions and crashes
// of VMs, guests and controllers, with addresses that overlap between pools, requests and automatic addresses.
func TestAddresses_NoneIsUsedTwice(t *testing.T) {
	tier.All(t)
	t.Parallel()
	authority := newAuthority(t)
	tier.Check(t, func(t *rapid.T) {
		w := newAddressWorld(t, authority)
		steps := []func(){w.declare, w.declare, w.pass, w.pass, w.pass, w.provide, w.end, w.remove, w.removeClaim, w.changePool, w.lead, w.crash}
		for range rapid.IntRange(10, 40).Draw(t, "steps") {
			steps[rapid.IntRange(0, len(steps)-1).Draw(t, "step")]()
			w.check()
		}
		w.checkOneStarts()
	})
}

// checkOneStarts checks that a VM has a guest when all other VMs are gone, regardless of what has happened.
func (w *addressWorld) checkOneStarts() {
	w.declare()
	one, others := w.vms()[0], w.vms()[1:]
	for _, vm := range others {
		w.must(client.IgnoreNotFound(w.live.Delete(context.Background(), &vm)))
	}
	for range 5 {
		for _, name := range tinyVMs {
			w.reconcile(name)
			w.check()
		}
		w.provide()
	}
	if !one.DeletionTimestamp.IsZero() {
		return
	}
	if !slices.ContainsFunc(w.pods(), func(pod corev1.Pod) bool { return podstate.Alive(&pod) && len(podspec.Addresses(&pod)) > 0 }) {
		w.must(w.live.Get(context.Background(), client.ObjectKeyFromObject(&one), &one))
		w.Fatalf("%s has no guest: %+v", one.Name, one.Status.Conditions)
	}
}
