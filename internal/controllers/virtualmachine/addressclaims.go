package virtualmachine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/ipam"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
)

// ipamGroup is the API group of Cluster API's IPAM contract.
const ipamGroup = "ipam.cluster.x-k8s.io"

// Kinds of the contract, which exist only if Cluster API or an IPAM provider has installed them.
var (
	claimKind   = schema.GroupKind{Group: ipamGroup, Kind: "IPAddressClaim"}
	addressKind = schema.GroupKind{Group: ipamGroup, Kind: "IPAddress"}
)

// countedPools are the kinds of pools whose objects the controller has permission to read, because they count their free
// addresses and the provider does not report on a claim that it cannot serve.
var countedPools = map[schema.GroupKind]bool{
	{Group: ipamGroup, Kind: "InClusterIPPool"}:       true,
	{Group: ipamGroup, Kind: "GlobalInClusterIPPool"}: true,
}

// poolExhausted is the reason of the condition Ready of an IPAddressClaim whose pool has no free address.
const poolExhausted = "PoolExhausted"

// addressClaim has the fields of an IPAddressClaim that the controller reads. They are the same in all API versions.
type addressClaim struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		PoolRef v1alpha1.IPPoolReference `json:"poolRef"`
	} `json:"spec"`
	Status struct {
		AddressRef struct {
			Name string `json:"name"`
		} `json:"addressRef"`
		Conditions []struct {
			Type    string                 `json:"type"`
			Status  metav1.ConditionStatus `json:"status"`
			Reason  string                 `json:"reason"`
			Message string                 `json:"message"`
		} `json:"conditions"`
	} `json:"status"`
}

// ipAddress has the fields of an IPAddress that the controller reads. They are the same in all API versions.
type ipAddress struct {
	Spec struct {
		ClaimRef struct {
			Name string `json:"name"`
		} `json:"claimRef"`
		PoolRef v1alpha1.IPPoolReference `json:"poolRef"`
		Address string                   `json:"address"`
		Prefix  int                      `json:"prefix"`
		Gateway string                   `json:"gateway"`
	} `json:"spec"`
}

// countedPool has the fields of a pool that the controller reads.
type countedPool struct {
	Status struct {
		// IPAddresses is nil until the provider has counted the addresses.
		IPAddresses *struct {
			Total int64 `json:"total"`
			Free  int64 `json:"free"`
		} `json:"ipAddresses"`
	} `json:"status"`
}

// addressClaims gets addresses from pools, as Cluster API's IPAM contract defines: it creates an IPAddressClaim for each
// pool of a VM, and the provider of the pool creates an IPAddress for it. The claim is owned by the VM and is never
// deleted here. So the VM keeps the address until the garbage collector deletes the claim after the VM is gone.
type addressClaims struct {
	*cluster

	mu sync.Mutex
	// watch starts to watch the claims. It is nil once they are watched, and without a manager.
	watch func(claims schema.GroupVersionKind) error
}

// given returns the addresses that the pools of a VM give to it, or a cause if an address is missing. Without pools, it
// returns neither.
func (c *addressClaims) given(ctx context.Context, s *scope) ([]ipam.Given, *cause, error) {
	pools := s.vm.Spec.AddressesFromPools
	if len(pools) == 0 {
		return nil, nil, nil
	}
	kind, err := c.kind(claimKind)
	if meta.IsNoMatchError(err) {
		return nil, causef(reasonAddress, "spec.addressesFromPools: the cluster does not serve the kind %s; install Cluster API and an IPAM provider", claimKind), nil
	}
	if err == nil {
		err = c.startWatch(kind)
	}
	if err != nil {
		return nil, nil, err
	}
	claims := make([]*addressClaim, len(pools))
	for i, pool := range pools { // of all pools, before any address is awaited
		var wrong *cause
		if claims[i], wrong, err = c.ensure(ctx, s, kind, pool); wrong != nil || err != nil {
			return nil, wrong, err
		}
	}
	given := make([]ipam.Given, len(pools))
	for i, pool := range pools {
		one, missing, err := c.addressOf(ctx, claims[i], pool)
		if missing != nil || err != nil {
			return nil, missing, err
		}
		given[i] = one
	}
	return given, nil, nil
}

// kind returns a kind with the version in which the cluster prefers to serve it.
func (c *addressClaims) kind(of schema.GroupKind) (schema.GroupVersionKind, error) {
	mapping, err := c.client.RESTMapper().RESTMapping(of)
	if err != nil {
		return schema.GroupVersionKind{}, fmt.Errorf("discovering %s: %w", of, err)
	}
	return mapping.GroupVersionKind, nil
}

// startWatch watches the claims from now on. Without a VM that uses a pool, they are not watched, because the kind may not
// exist.
func (c *addressClaims) startWatch(kind schema.GroupVersionKind) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watch == nil {
		return nil
	}
	if err := c.watch(kind); err != nil {
		return fmt.Errorf("watching %s: %w", kind.GroupKind(), err)
	}
	c.watch = nil
	return nil
}

// ensure returns the claim of a VM for a pool, which it creates if it does not exist. It returns a cause if the name
// belongs to another claim.
func (c *addressClaims) ensure(ctx context.Context, s *scope, kind schema.GroupVersionKind, pool v1alpha1.IPPoolReference) (*addressClaim, *cause, error) {
	name, claim := claimNameFor(s.vm, pool), &addressClaim{}
	err := c.read(ctx, kind, client.ObjectKey{Namespace: s.vm.Namespace, Name: name}, claim)
	switch {
	case apierrors.IsNotFound(err):
		return c.create(ctx, s, kind, name, pool)
	case err != nil:
		return nil, nil, err
	case !metav1.IsControlledBy(claim, s.vm) || claim.Spec.PoolRef != pool:
		return nil, causef(reasonAddress, "spec.addressesFromPools: IPAddressClaim %s exists but does not belong to this virtual machine; delete the claim", name), nil
	case !claim.DeletionTimestamp.IsZero():
		return nil, causef(reasonAddressPending, "spec.addressesFromPools: IPAddressClaim %s is being deleted; it is created again when it is gone", name), nil
	}
	return claim, nil, nil
}

// create creates the claim of a VM for a pool.
func (c *addressClaims) create(ctx context.Context, s *scope, kind schema.GroupVersionKind, name string, pool v1alpha1.IPPoolReference) (*addressClaim, *cause, error) {
	if _, err := c.confirm(ctx, s); err != nil {
		return nil, nil, err
	}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"poolRef": map[string]any{"apiGroup": pool.APIGroup, "kind": pool.Kind, "name": pool.Name},
	}}}
	object.SetGroupVersionKind(kind)
	object.SetNamespace(s.vm.Namespace)
	object.SetName(name)
	object.SetLabels(map[string]string{v1alpha1.LabelVM: s.vm.Name})
	object.SetOwnerReferences([]metav1.OwnerReference{podspec.OwnerReference(s.vm)})
	err := c.client.Create(ctx, object)
	if apierror.Taken(err) {
		return nil, nil, edge.ErrStale
	}
	if err != nil {
		return nil, nil, fmt.Errorf("creating IPAddressClaim %s: %w", name, err)
	}
	claim := &addressClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.vm.Namespace, Name: name}}
	claim.Spec.PoolRef = pool
	return claim, nil, nil
}

// addressOf returns the address of a claim, or a cause if there is none.
func (c *addressClaims) addressOf(ctx context.Context, claim *addressClaim, pool v1alpha1.IPPoolReference) (ipam.Given, *cause, error) {
	name := claim.Status.AddressRef.Name
	if name == "" {
		missing, err := c.missing(ctx, claim, pool)
		return ipam.Given{}, missing, err
	}
	from, found := nameOf(pool, claim.Namespace), &ipAddress{}
	err := c.readKind(ctx, addressKind, client.ObjectKey{Namespace: claim.Namespace, Name: name}, found)
	if apierrors.IsNotFound(err) {
		return ipam.Given{}, causef(reasonAddressPending, "%s: IPAddress %s of IPAddressClaim %s was not found", from, name, claim.Name), nil
	}
	if err != nil {
		return ipam.Given{}, nil, err
	}
	spec := found.Spec
	if spec.ClaimRef.Name != claim.Name || spec.PoolRef != pool {
		return ipam.Given{}, causef(reasonAddress, "%s: IPAddress %s was created for IPAddressClaim %s and %s, not for IPAddressClaim %s; delete IPAddressClaim %[5]s to get another address",
			from, name, spec.ClaimRef.Name, nameOf(spec.PoolRef, claim.Namespace), claim.Name), nil
	}
	given := ipam.Given{Bits: spec.Prefix, Pool: from, Claim: claim.Name}
	if given.Address, err = netip.ParseAddr(spec.Address); err == nil && spec.Gateway != "" {
		given.Gateway, err = netip.ParseAddr(spec.Gateway)
	}
	if err != nil || given.Address.Zone() != "" {
		return ipam.Given{}, causef(reasonAddress, "%s: IPAddress %s has the malformed address %q or gateway %q; delete IPAddressClaim %s to get another address",
			from, name, spec.Address, spec.Gateway, claim.Name), nil
	}
	given.Address, given.Gateway = given.Address.Unmap(), given.Gateway.Unmap()
	return given, nil, nil
}

// missing returns why a claim has no address.
func (c *addressClaims) missing(ctx context.Context, claim *addressClaim, pool v1alpha1.IPPoolReference) (*cause, error) {
	from := nameOf(pool, claim.Namespace)
	for _, condition := range claim.Status.Conditions {
		if condition.Type != v1alpha1.ConditionReady || condition.Status != metav1.ConditionFalse {
			continue
		}
		if condition.Reason == poolExhausted {
			return causef(v1alpha1.ReasonAddressPoolExhausted, "%s has no free address: %s; delete virtual machines that use the pool, or add addresses to it", from, condition.Message), nil
		}
		return causef(reasonAddress, "%s gives no address to IPAddressClaim %s: %s: %s", from, claim.Name, condition.Reason, condition.Message), nil
	}
	exhausted, err := c.exhausted(ctx, claim, pool)
	if exhausted != nil || err != nil {
		return exhausted, err
	}
	return causef(reasonAddressPending, "waiting for %s to give an address to IPAddressClaim %s; if this takes long, check that the pool exists and is not paused, and that its IPAM provider is running",
		from, claim.Name), nil
}

// exhausted returns a cause if the pool of a claim does not exist or has no free address. It returns nil if the pool has
// one, is about to give its last one to the claim, or is of a kind that the controller cannot read.
func (c *addressClaims) exhausted(ctx context.Context, claim *addressClaim, pool v1alpha1.IPPoolReference) (*cause, error) {
	of := schema.GroupKind{Group: pool.APIGroup, Kind: pool.Kind}
	if !countedPools[of] {
		return nil, nil
	}
	from, found := nameOf(pool, claim.Namespace), &countedPool{}
	err := c.readKind(ctx, of, client.ObjectKey{Namespace: claim.Namespace, Name: pool.Name}, found)
	switch {
	case meta.IsNoMatchError(err):
		return causef(reasonAddress, "spec.addressesFromPools: the cluster does not serve the kind %s; install the IPAM provider of the pool", of), nil
	case apierrors.IsNotFound(err):
		return causef(reasonAddress, "spec.addressesFromPools: %s does not exist; create it, or use a pool of this namespace", from), nil
	case err != nil:
		return nil, err
	}
	addresses := found.Status.IPAddresses
	if addresses == nil || addresses.Free > 0 {
		return nil, nil
	}
	// The provider may have given the last address to this claim: it then names the IPAddress like the claim.
	err = c.readKind(ctx, addressKind, client.ObjectKey{Namespace: claim.Namespace, Name: claim.Name}, &ipAddress{})
	if err == nil || !apierrors.IsNotFound(err) {
		return nil, err
	}
	return causef(v1alpha1.ReasonAddressPoolExhausted, "%s has no free address: all %d are in use; delete virtual machines that use the pool, or add addresses to it",
		from, addresses.Total), nil
}

// readKind is like read, for the preferred version of a kind.
func (c *addressClaims) readKind(ctx context.Context, of schema.GroupKind, key client.ObjectKey, into any) error {
	kind, err := c.kind(of)
	if err != nil {
		return err
	}
	return c.read(ctx, kind, key, into)
}

// read reads an object from the API server. A VM starts rarely, so a cache would not be worth its memory.
func (c *addressClaims) read(ctx context.Context, kind schema.GroupVersionKind, key client.ObjectKey, into any) error {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	if err := c.live.Get(ctx, key, object); err != nil {
		return fmt.Errorf("reading %s %s: %w", kind.Kind, key.Name, err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, into); err != nil {
		return fmt.Errorf("reading %s %s: %w", kind.Kind, key.Name, err)
	}
	return nil
}

// claimNameFor returns the name of the claim of a VM for a pool. A VM that gets another pool gets another claim, and has
// its old address again when it returns to the old pool.
func claimNameFor(vm *v1alpha1.VirtualMachine, pool v1alpha1.IPPoolReference) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{pool.APIGroup, pool.Kind, pool.Name}, "/")))
	return vm.Name + "-" + hex.EncodeToString(sum[:5])
}

// nameOf returns the name of a pool for messages. The namespace is that of the VM, where a namespaced pool must be.
func nameOf(pool v1alpha1.IPPoolReference, namespace string) string {
	if pool.Kind == "GlobalInClusterIPPool" {
		return pool.Kind + " " + pool.Name
	}
	return pool.Kind + " " + namespace + "/" + pool.Name
}
