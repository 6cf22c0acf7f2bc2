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

// VM is a simulated VM. Those that a Cloud returns are copies.
type VM struct {
	// ProviderID identifies the VM, and is never used again:
	// "sim:///<namespace>/<machine>/<number>-<hash>", where number counts the VMs
	// that were ever created for that machine, from 1.
	ProviderID string `json:"providerID"`
	// Namespace and Machine name the Machine for which the VM was created.
	Namespace string `json:"namespace"`
	Machine   string `json:"machine"`
	// NodeName is the name of the VM's node: the name of the machine.
	NodeName string `json:"nodeName"`
	// Account is that of the Secret.
	Account string `json:"account,omitempty"`
	// Pool and Tags are those of the class.
	Pool string            `json:"pool"`
	Tags map[string]string `json:"tags,omitempty"`
	// Zone is the zone of the class; empty if it names none.
	Zone string `json:"zone,omitempty"`
	// APIGroup is that of the object for which the VM was created, see driver.APIGroup.
	APIGroup string `json:"apiGroup,omitempty"`
	// CreatedAt is when the VM was created.
	CreatedAt time.Time `json:"createdAt"`
	// VisibleAt is when it is found by name and listed.
	VisibleAt time.Time `json:"visibleAt"`
	// GoneAt is when it will be gone. Zero unless it is being deleted.
	GoneAt time.Time `json:"goneAt,omitzero"`
	// Initialized is false as long as InitializeMachine is outstanding.
	Initialized bool `json:"initialized"`
	// Node says how the VM becomes a node. Nil means that it never does.
	Node *NodePlan `json:"node,omitempty"`
}

// NodePlan says how and when a VM becomes a node. The zero value joins at once, and stays
// ready.
type NodePlan struct {
	// JoinAt is when the node is created.
	JoinAt time.Time `json:"joinAt"`
	// Joined is true once that has happened.
	Joined bool `json:"joined"`
	// DiesAt is when the VM vanishes. Zero means that it does not.
	DiesAt time.Time `json:"diesAt,omitzero"`
	// NotReady keeps the node at Ready=False.
	NotReady bool `json:"notReady,omitempty"`
	// FlapInterval is the time between two changes of Ready; zero means that it
	// does not flap.
	FlapInterval time.Duration `json:"flapInterval,omitempty"`
	// Agent updates the node in place, which takes UpdateTime.
	Agent      Agent         `json:"agent,omitempty"`
	UpdateTime time.Duration `json:"updateTime,omitempty"`
	// Labels, Taints and Capacity of the node.
	Labels   map[string]string   `json:"labels,omitempty"`
	Taints   []corev1.Taint      `json:"taints,omitempty"`
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
}

// key identifies the machine of a VM: "namespace/name".
func (v VM) key() string { return v.Namespace + "/" + v.Machine }

func (v VM) account() string { return cmp.Or(v.Account, defaultAccount) }

// clone returns a copy whose NodePlan may be changed. Maps and slices below it are
// never written, so they stay shared.
func (v VM) clone() VM {
	if v.Node != nil {
		plan := *v.Node
		v.Node = &plan
	}
	return v
}

// addresses returns addresses that are derived from the provider ID, and so are unique.
func (v VM) addresses() []corev1.NodeAddress {
	ip := [16]byte{0: 0xfd}
	binary.BigEndian.PutUint64(ip[8:], dice.Hash("address", v.ProviderID))
	return []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: netip.AddrFrom16(ip).String()},
		{Type: corev1.NodeHostName, Address: v.NodeName},
	}
}

// owner selects the VMs of a class: those of its account, API group and pool that have all its
// tags.
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

// own returns those of vms that are the owner's.
func (o owner) own(vms []VM) []VM {
	return slices.DeleteFunc(vms, func(v VM) bool { return !o.owns(v) })
}

// fits reports whether v is what a request for want would create.
func fits(v, want VM) bool {
	return v.Pool == want.Pool && v.Zone == want.Zone && v.APIGroup == want.APIGroup && maps.Equal(v.Tags, want.Tags)
}
