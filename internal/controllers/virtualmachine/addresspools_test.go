package virtualmachine

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// ipamCRDs is the directory with placeholders of the CRDs of Cluster API's IPAM contract and of the provider in-cluster.
const ipamCRDs = "internal/controllers/virtualmachine/testdata/ipam"

// newPoolEnv returns a testEnv whose API server serves pools.
func newPoolEnv(t *testing.T) *testEnv {
	t.Helper()
	e := env.New(t)
	e.InstallCRDs(t, ipamCRDs)
	return newTestEnvIn(t, e, nil)
}

// inPool returns a change of a VM that gets its addresses from pools of the kind InClusterIPPool. It has no claims of
// disks, because nothing removes their finalizers.
func inPool(pools ...string) func(*v1alpha1.VirtualMachine) {
	return func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.VolumeClaimTemplate = nil
		for _, name := range pools {
			vm.Spec.AddressesFromPools = append(vm.Spec.AddressesFromPools, poolNamed(name))
		}
	}
}

func poolNamed(name string) v1alpha1.IPPoolReference {
	return v1alpha1.IPPoolReference{APIGroup: ipamGroup, Kind: "InClusterIPPool", Name: name}
}

// ipamObject returns an object of the IPAM contract. Pools have the version v1alpha2, other kinds v1beta2.
func (w *testEnv) ipamObject(kind, name string, content map[string]any) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: content}
	version := "v1beta2"
	if strings.HasSuffix(kind, "Pool") {
		version = "v1alpha2"
	}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: ipamGroup, Version: version, Kind: kind})
	object.SetNamespace(w.namespace)
	object.SetName(name)
	return object
}

func (w *testEnv) createPool(name string, addresses ...any) {
	w.Helper()
	w.must(w.client.Create(w.Context(), w.ipamObject("InClusterIPPool", name, map[string]any{
		"spec": map[string]any{"addresses": addresses, "prefix": int64(testNetwork.Bits())},
	})))
}

func (w *testEnv) listIPAM(kind string) []unstructured.Unstructured {
	w.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(w.ipamObject(kind+"List", "", map[string]any{}).GroupVersionKind())
	if strings.HasSuffix(kind, "Pool") {
		list.SetAPIVersion(ipamGroup + "/v1alpha2")
	}
	w.must(w.client.List(w.Context(), list, client.InNamespace(w.namespace)))
	return list.Items
}

func text(object *unstructured.Unstructured, fields ...string) string {
	value, _, _ := unstructured.NestedString(object.Object, fields...)
	return value
}

// provide does, once for all claims, what the IPAM provider in-cluster does: it gives the claims addresses of their
// pools, and counts the addresses of the pools. It also deletes the claims of VMs that are gone, as the garbage collector
// does. Like the provider, it does not report on claims that it cannot serve.
func (w *testEnv) provide() {
	w.Helper()
	used := map[string]map[string]bool{} // by pool
	var open []unstructured.Unstructured
	addresses := w.listIPAM("IPAddress")
	for _, claim := range w.listIPAM("IPAddressClaim") {
		pool := text(&claim, "spec", "poolRef", "name")
		i := slices.IndexFunc(addresses, func(address unstructured.Unstructured) bool { return address.GetName() == claim.GetName() })
		switch {
		case w.gone(&v1alpha1.VirtualMachine{}, metav1.GetControllerOf(&claim).Name):
			w.must(w.client.Delete(w.Context(), &claim))
			if i >= 0 {
				w.must(w.client.Delete(w.Context(), &addresses[i]))
			}
		case i >= 0:
			used[pool] = w.with(used[pool], text(&addresses[i], "spec", "address"))
		default:
			open = append(open, claim)
		}
	}
	slices.SortFunc(open, func(a, b unstructured.Unstructured) int { return cmp.Compare(a.GetName(), b.GetName()) })
	for _, pool := range w.listIPAM("InClusterIPPool") {
		all, _, _ := unstructured.NestedStringSlice(pool.Object, "spec", "addresses")
		for _, address := range all {
			at := slices.IndexFunc(open, func(claim unstructured.Unstructured) bool {
				return text(&claim, "spec", "poolRef", "name") == pool.GetName()
			})
			if at >= 0 && !used[pool.GetName()][address] {
				w.give(&open[at], map[string]any{"address": address})
				used[pool.GetName()], open = w.with(used[pool.GetName()], address), slices.Delete(open, at, at+1)
			}
		}
		inUse := int64(len(used[pool.GetName()]))
		pool.Object["status"] = map[string]any{"ipAddresses": map[string]any{
			"total": int64(len(all)), "used": inUse, "free": int64(len(all)) - inUse,
		}}
		w.must(w.client.Status().Update(w.Context(), &pool))
	}
}

func (w *testEnv) with(set map[string]bool, value string) map[string]bool {
	if set == nil {
		set = map[string]bool{}
	}
	set[value] = true
	return set
}

// give creates the IPAddress of a claim, and then stores its name in the claim. The spec overrides the usual fields.
func (w *testEnv) give(claim *unstructured.Unstructured, spec map[string]any) {
	w.Helper()
	pool, _, _ := unstructured.NestedMap(claim.Object, "spec", "poolRef")
	full := map[string]any{"claimRef": map[string]any{"name": claim.GetName()}, "poolRef": pool, "prefix": int64(testNetwork.Bits())}
	for field, value := range spec {
		full[field] = value
	}
	w.must(w.client.Create(w.Context(), w.ipamObject("IPAddress", claim.GetName(), map[string]any{"spec": full})))
	w.setStatus(claim, map[string]any{"addressRef": map[string]any{"name": claim.GetName()}})
}

func (w *testEnv) setStatus(claim *unstructured.Unstructured, status map[string]any) {
	w.Helper()
	claim.Object["status"] = status
	w.must(w.client.Status().Update(w.Context(), claim))
}

// awaitClaim waits for the claim of a VM for a pool.
func (w *testEnv) awaitClaim(vm, pool string) *unstructured.Unstructured {
	w.Helper()
	object := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: vm}}
	claim := w.ipamObject("IPAddressClaim", "", map[string]any{})
	w.eventually("a claim of "+vm+" for "+pool, func() bool { return !w.gone(claim, claimNameFor(object, poolNamed(pool))) })
	return claim
}

// wantReady waits for the reason of the condition Ready, and checks that its message contains the texts.
func (w *testEnv) wantReady(vm, reason string, texts ...string) {
	w.Helper()
	w.eventually(vm+" is "+reason+" with "+fmt.Sprint(texts), func() bool {
		ready := meta.FindStatusCondition(w.vm(vm).Status.Conditions, v1alpha1.ConditionReady)
		return ready != nil && ready.Reason == reason && !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(ready.Message, text) })
	})
}

// wantGuestAddress waits for a Pod like awaitPod, and checks the address of its guest.
func (w *testEnv) wantGuestAddress(vm, not, want string) *corev1.Pod {
	w.Helper()
	pod := w.awaitPod(vm, not)
	if got := podspec.Addresses(pod); !slices.Equal(got, []string{want}) {
		w.Errorf("the guest of %s has the addresses %v, want %s", vm, got, want)
	}
	return pod
}

// deleteVM deletes a VM without claims of disks, in the roles of a user and the kubelet.
func (w *testEnv) deleteVM(name string) {
	w.Helper()
	w.must(w.client.Delete(w.Context(), w.vm(name)))
	w.eventually(name+" is gone", func() bool {
		for _, pod := range w.pods(name) {
			if pod.DeletionTimestamp != nil {
				w.remove(&pod)
			}
		}
		return w.gone(&v1alpha1.VirtualMachine{}, name)
	})
}

// TestAddressesFromPools_AreKeptUntilVMIsDeleted checks that a VM keeps its address of a pool when its hypervisor and the
// VM controller are started again, that another VM reports that the pool has no free address, and that it gets the
// address when the first VM is gone, but not while the guest of the first VM can still be running.
func TestAddressesFromPools_AreKeptUntilVMIsDeleted(t *testing.T) {
	t.Parallel()
	const address = "10.77.200.9"
	w := newPoolEnv(t)
	w.createPool("small", address)
	w.declare("a", inPool("small"))
	w.awaitClaim("a", "small")
	w.provide()
	first := w.wantGuestAddress("a", "", address)

	w.declare("b", inPool("small"))
	claim := w.awaitClaim("b", "small")
	w.provide()
	message := "InClusterIPPool " + w.namespace + "/small has no free address: all 1 are in use"
	w.wantReady("b", v1alpha1.ReasonAddressPoolExhausted, message)
	w.awaitEvent(message)

	w.restart()
	pod := w.awaitPod("a", "")
	w.end(pod, left(vmpb.EndQEMUFailed, "QEMU crashed"))
	second := w.wantGuestAddress("a", first.Name, address)
	if got := len(w.listIPAM("IPAddressClaim")); got != 2 {
		t.Errorf("there are %d claims, want 2", got)
	}
	// A user deletes the claim of a running guest.
	w.must(w.client.Delete(t.Context(), w.awaitClaim("a", "small")))
	for _, released := range w.listIPAM("IPAddress") {
		w.must(w.client.Delete(t.Context(), &released))
	}
	w.give(claim, map[string]any{"address": address})
	w.wantReady("b", reasonAddress, "InClusterIPPool "+w.namespace+"/small", address, "already used by virtual machine "+w.namespace+"/a")
	if got := w.awaitPod("a", ""); got.Name != second.Name {
		t.Errorf("the guest of a was replaced")
	}
	w.deleteVM("a")
	w.wantGuestAddress("b", "", address)
}

// TestAddressesFromPools_FollowReleasedAddress checks that a VM that waits for an address of a pool gets one as soon as
// another VM of the pool is gone, and that a VM which gets another pool keeps the claims of both.
func TestAddressesFromPools_FollowReleasedAddress(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newPoolEnv(t)
	w.createPool("small", "10.77.201.9")
	w.createPool("other", "10.77.201.10")
	w.declare("a", inPool("small"))
	w.awaitClaim("a", "small")
	w.provide()
	w.wantGuestAddress("a", "", "10.77.201.9")
	w.declare("b", inPool("small"))
	w.awaitClaim("b", "small")
	w.provide()
	w.awaitReady("b", v1alpha1.ReasonAddressPoolExhausted)
	w.deleteVM("a")
	w.provide()
	pod := w.wantGuestAddress("b", "", "10.77.201.9")

	w.change("b", func(vm *v1alpha1.VirtualMachine) { vm.Spec.AddressesFromPools[0].Name = "other" })
	w.end(w.awaitPod("b", ""), left(vmpb.EndQEMUFailed, "QEMU crashed"))
	w.awaitClaim("b", "other")
	w.provide()
	w.wantGuestAddress("b", pod.Name, "10.77.201.10")
	w.awaitClaim("b", "small")
}

// TestAddressesFromPools_BadInputIsReported checks that a VM gets no Pod, and reports why, if a pool does not exist or gives
// it an address that it cannot have, and that this does not affect a running guest.
func TestAddressesFromPools_BadInputIsReported(t *testing.T) {
	t.Parallel()
	const taken = "10.77.202.5"
	w := newPoolEnv(t)
	w.declare("running", func(vm *v1alpha1.VirtualMachine) { vm.Spec.VMIPs, vm.Spec.VolumeClaimTemplate = []string{taken}, nil })
	running := w.wantGuestAddress("running", "", taken)
	w.createPool("pool", "10.77.202.6")
	pool, again := "InClusterIPPool "+w.namespace+"/pool", "to get another address"
	tests := map[string]struct {
		spec   map[string]any // of the IPAddress
		status map[string]any // of the claim, instead of an address
		reason string
		texts  []string
	}{
		"overlapping-pools": {spec: map[string]any{"address": taken}, reason: reasonAddress, texts: []string{pool, taken, "already used by virtual machine " + w.namespace + "/running", again}},
		"outside":           {spec: map[string]any{"address": "192.0.2.7"}, reason: reasonAddress, texts: []string{pool, "192.0.2.7", testNetwork.String(), again}},
		"reserved":          {spec: map[string]any{"address": "10.77.0.3"}, reason: reasonAddress, texts: []string{pool, "10.77.0.3"}},
		"malformed":         {spec: map[string]any{"address": "10.77"}, reason: reasonAddress, texts: []string{pool, `"10.77"`, again}},
		"prefix": {spec: map[string]any{"address": "10.77.202.7", "prefix": int64(24)}, reason: reasonAddress,
			texts: []string{pool, "prefix length 24", testNetwork.String(), again}},
		"gateway": {spec: map[string]any{"address": "10.77.202.7", "gateway": "10.77.0.1"}, reason: reasonAddress,
			texts: []string{pool, "10.77.0.1", "have the gateway 10.77.0.2", again}},
		"other-claim": {spec: map[string]any{"address": "10.77.202.7", "claimRef": map[string]any{"name": "another"}}, reason: reasonAddress,
			texts: []string{pool, "created for IPAddressClaim another", again}},
		"no-address": {status: map[string]any{"addressRef": map[string]any{"name": "missing"}}, reason: reasonAddressPending, texts: []string{pool, "IPAddress missing"}},
		"failed-provider": {status: map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "False", "reason": "PoolNotReady", "message": "no backend"}}},
			reason: reasonAddress, texts: []string{pool, "PoolNotReady: no backend"}},
		"exhausted": {status: map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "False", "reason": poolExhausted, "message": "3 of 3 used"}}},
			reason: v1alpha1.ReasonAddressPoolExhausted, texts: []string{pool, "3 of 3 used"}},
	}
	for name, test := range tests {
		w.declare(name, inPool("pool"))
		if claim := w.awaitClaim(name, "pool"); test.status != nil {
			w.setStatus(claim, test.status)
		} else {
			w.give(claim, test.spec)
		}
		w.wantReady(name, test.reason, test.texts...)
	}
	w.declare("waiting", inPool("pool"))
	w.wantReady("waiting", reasonAddressPending, pool)
	w.declare("no-pool", inPool("nowhere"))
	w.wantReady("no-pool", reasonAddress, "InClusterIPPool "+w.namespace+"/nowhere does not exist")
	w.declare("no-global-pool", func(vm *v1alpha1.VirtualMachine) {
		inPool("nowhere")(vm)
		vm.Spec.AddressesFromPools[0].Kind = "GlobalInClusterIPPool"
	})
	w.wantReady("no-global-pool", reasonAddress, "GlobalInClusterIPPool nowhere does not exist")
	w.declare("two", inPool("pool", "second"))
	w.give(w.awaitClaim("two", "pool"), map[string]any{"address": "10.77.202.8"})
	w.give(w.awaitClaim("two", "second"), map[string]any{"address": "10.77.202.9"})
	w.wantReady("two", reasonAddress, pool, "/second", "same IP version")
	w.must(w.client.Create(t.Context(), w.ipamObject("IPAddressClaim", claimNameFor(&v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "foreign"}}, poolNamed("pool")),
		map[string]any{"spec": map[string]any{}})))
	w.declare("foreign", inPool("pool"))
	w.wantReady("foreign", reasonAddress, "IPAddressClaim foreign-", "does not belong to this virtual machine")
	if got := w.awaitPod("running", ""); got.Name != running.Name {
		t.Error("the running guest was replaced")
	}
	for _, vm := range []string{"overlapping-pools", "outside", "no-pool", "two", "foreign"} {
		if pods := w.pods(vm); len(pods) > 0 {
			t.Errorf("%s has the pods %v", vm, pods)
		}
	}
}

// TestAddressesFromPools_DocumentedExample checks that the VM of the documentation gets an address of the pool there.
func TestAddressesFromPools_DocumentedExample(t *testing.T) {
	t.Parallel()
	w := newPoolEnv(t)
	root, err := env.Root()
	w.must(err)
	page, err := os.ReadFile(filepath.Join(root, "docs/tasks/vm-networking.md"))
	w.must(err)
	_, example, _ := strings.Cut(string(page), "```yaml\napiVersion: ipam.")
	example, _, _ = strings.Cut("apiVersion: ipam."+example, "```")
	objects := map[string]*unstructured.Unstructured{}
	for document := range strings.SplitSeq(example, "---\n") {
		object := &unstructured.Unstructured{}
		w.must(yaml.Unmarshal([]byte(document), object))
		object.SetNamespace(w.namespace)
		w.must(w.client.Create(t.Context(), object))
		objects[object.GetKind()] = object
	}
	pool, vm := objects["InClusterIPPool"], objects[v1alpha1.VirtualMachineKind].GetName()
	claim := w.awaitClaim(vm, pool.GetName())
	ranges, _, _ := unstructured.NestedStringSlice(pool.Object, "spec", "addresses")
	first, last, _ := strings.Cut(ranges[0], "-")
	prefix, _, _ := unstructured.NestedInt64(pool.Object, "spec", "prefix")
	if !testNetwork.Contains(netip.MustParseAddr(last)) {
		t.Errorf("the last address of the pool is %s, which is not in %s", last, testNetwork)
	}
	w.give(claim, map[string]any{"address": first, "prefix": prefix, "gateway": text(pool, "spec", "gateway")})
	w.wantGuestAddress(vm, "", first)
}

// TestAddressesFromPools_NeedTheirKinds checks that, in a cluster without Cluster API, a VM with a pool reports that, that
// other VMs start, and that the VM starts when the kinds have been installed.
func TestAddressesFromPools_NeedTheirKinds(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.New(t, env.WithOwn())
	w := newTestEnvIn(t, e, nil)
	w.declare("other", func(vm *v1alpha1.VirtualMachine) { vm.Spec.VolumeClaimTemplate = nil })
	w.awaitPod("other", "")
	w.declare("a", inPool("pool"))
	w.wantReady("a", reasonAddress, "the cluster does not serve the kind IPAddressClaim.ipam.cluster.x-k8s.io; install")
	e.InstallCRDs(t, ipamCRDs)
	w.createPool("pool", "10.77.203.9")
	w.awaitClaim("a", "pool")
	w.provide()
	w.wantGuestAddress("a", "", "10.77.203.9")
}

// TestAddressesFromPools_AreValidated checks that the API server rejects contradictory specs.
func TestAddressesFromPools_AreValidated(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	for name, change := range map[string]func(*v1alpha1.VirtualMachine){
		"cannot be combined with vmIPs": func(vm *v1alpha1.VirtualMachine) {
			inPool("a")(vm)
			vm.Spec.VMIPs = []string{"10.77.0.40"}
		},
		"listed only once": inPool("a", "a"),
		"at most 2 items":  inPool("a", "b", "c"),
		"addressesFromPools[0]": func(vm *v1alpha1.VirtualMachine) {
			vm.Spec.AddressesFromPools = []v1alpha1.IPPoolReference{{Name: "a", Kind: "b"}}
		},
	} {
		vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "vm"}}
		change(vm)
		if err := w.client.Create(t.Context(), vm); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want an error with %q", err, name)
		}
	}
}
