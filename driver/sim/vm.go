package sim

import (
	"cmp"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/driver/sim/internal/dice"
)

// VM is a simulated VM. A Cloud returns copies.
type VM struct {
	// ProviderID identifies the VM and is never reused: "sim:///<namespace>/<machine>/<number>-<hash>", where
	// number counts the VMs that have been created for that machine, from 1.
	ProviderID string `json:"providerID"`
	// Namespace and Machine name the Machine for which the VM was created.
	Namespace string `json:"namespace"`
	Machine   string `json:"machine"`
	// NodeName is the name of the VM's node, which is the name of the machine.
	NodeName string `json:"nodeName"`
	// Account is the account in the Secret.
	Account string `json:"account,omitempty"`
	// Pool and Tags are those of the class.
	Pool string            `json:"pool"`
	Tags map[string]string `json:"tags,omitempty"`
	// Zone is the zone of the class, or empty if the class has none.
	Zone string `json:"zone,omitempty"`
	// APIGroup is the API group of the object for which the VM was created; see driver.APIGroup.
	APIGroup string `json:"apiGroup,omitempty"`
	// CreatedAt is the time when the VM was created.
	CreatedAt time.Time `json:"createdAt"`
	// VisibleAt is the time from which the VM is found by name and listed.
	VisibleAt time.Time `json:"visibleAt"`
	// GoneAt is the time when the deletion completes. It is zero unless the VM is being deleted.
	GoneAt time.Time `json:"goneAt,omitzero"`
	// Initialized is false until InitializeMachine is called for a VM that needs it.
	Initialized bool `json:"initialized"`
	// Node describes how the VM becomes a node. If nil, it never does.
	Node *NodePlan `json:"node,omitempty"`
}

// NodePlan describes how and when a VM becomes a node. With the zero value, it joins immediately and stays ready.
type NodePlan struct {
	// JoinAt is the time when the node is created.
	JoinAt time.Time `json:"joinAt"`
	// Joined is true once the node has been created.
	Joined bool `json:"joined"`
	// DiesAt is the time when the VM vanishes. Zero means never.
	DiesAt time.Time `json:"diesAt,omitzero"`
	// NotReady keeps the node at Ready=False.
	NotReady bool `json:"notReady,omitempty"`
	// FlapInterval is the time between two changes of Ready. Zero means that the node does not flap.
	FlapInterval time.Duration `json:"flapInterval,omitempty"`
	// Agent updates the node in place, which takes UpdateTime.
	Agent      Agent         `json:"agent,omitempty"`
	UpdateTime time.Duration `json:"updateTime,omitempty"`
	// Labels, Taints and Capacity of the node.
	Labels   map[string]string   `json:"labels,omitempty"`
	Taints   []corev1.Taint      `json:"taints,omitempty"`
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
}

// key returns the machine of a VM as "namespace/name".
func (v VM) key() string { return v.Namespace + "/" + v.Machine }

func (v VM) account() string { return cmp.Or(v.Account, defaultAccount) }

// clone returns a copy whose NodePlan may be changed. The maps and slices in it are shared, because they are never
// written.
func (v VM) clone() VM {
	if v.Node != nil {
		plan := *v.Node
		v.Node = &plan
	}
	return v
}

// addresses returns addresses that are derived from the provider ID and are therefore unique.
func (v VM) addresses() []corev1.NodeAddress {
	ip := [16]byte{0: 0xfd}
	binary.BigEndian.PutUint64(ip[8:], dice.Hash("address", v.ProviderID))
	return []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: netip.AddrFrom16(ip).String()},
		{Type: corev1.NodeHostName, Address: v.NodeName},
	}
}

// owner selects the VMs of a class: VMs of its account, API group and pool that have all its tags.
type owner struct {
	account, pool, apiGroup string
	tags                    map[string]string
	anyPool                 bool
}

func (o owner) owns(v VM) bool {
	if v.account() != o.account || !o.anyPool && v.Pool != o.pool || v.APIGroup != o.apiGroup {
		return false
	}
	for key, value := range o.tags {
		if got, ok := v.Tags[key]; !ok || got != value {
			return false
		}
	}
	return true
}

// own returns the VMs that belong to the owner.
func (o owner) own(vms []VM) []VM {
	return slices.DeleteFunc(vms, func(v VM) bool { return !o.owns(v) })
}

// fits reports whether v is the VM that a request for want would create.
func fits(v, want VM) bool {
	return v.Pool == want.Pool && v.Zone == want.Zone && v.APIGroup == want.APIGroup && maps.Equal(v.Tags, want.Tags)
}
