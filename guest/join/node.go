package join

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/millwright-dev/millwright/guest/kube"
	"github.com/millwright-dev/millwright/guest/userdata"
)

const nodesPath = "/api/v1/nodes"

// Machine is what a Node tells of the machine under it.
type Machine struct {
	// Addresses of the machine, without prefix length.
	Addresses []string
	// CPUs is the number of processors.
	CPUs int
	// MemoryKiB is the size of the memory.
	MemoryKiB uint64
	// BootID is different after each boot.
	BootID string
	// UUID is that of SMBIOS. May be empty.
	UUID string
	// MachineID is what stays over boots.
	MachineID string
	// Kernel is the kernel's release.
	Kernel string
}

type nodeSpec struct {
	ProviderID string           `json:"providerID,omitempty"`
	Taints     []userdata.Taint `json:"taints,omitempty"`
}

type nodeStatus struct {
	Addresses   []address         `json:"addresses"`
	Capacity    map[string]string `json:"capacity"`
	Allocatable map[string]string `json:"allocatable"`
	Conditions  []condition       `json:"conditions"`
	NodeInfo    map[string]string `json:"nodeInfo"`
}

// address has, in the last of a patch's list, what makes the list replace the old one.
type address struct {
	Type    string `json:"type,omitempty"`
	Address string `json:"address,omitempty"`
	Patch   string `json:"$patch,omitempty"`
}

type condition struct {
	Type       string `json:"type"`
	Status     string `json:"status"`
	Reason     string `json:"reason"`
	Message    string `json:"message"`
	Heartbeat  string `json:"lastHeartbeatTime"`
	Transition string `json:"lastTransitionTime"`
}

// existing is what has to be known of a Node that is there already.
type existing struct {
	Metadata metadata `json:"metadata"`
	Spec     nodeSpec `json:"spec"`
	Status   struct {
		Conditions []condition `json:"conditions"`
	} `json:"status"`
}

// status is all that the guest says of its Node. Pods are not run, so there is room for
// none.
func (m Machine) status(name string, now time.Time) nodeStatus {
	status := nodeStatus{
		Addresses: []address{{Type: "Hostname", Address: name}},
		Capacity: map[string]string{
			"cpu": fmt.Sprint(m.CPUs), "memory": fmt.Sprintf("%dKi", m.MemoryKiB), "pods": "0",
		},
		NodeInfo: map[string]string{
			"machineID": m.MachineID, "systemUUID": m.UUID, "bootID": m.BootID, "kernelVersion": m.Kernel,
			"osImage": "Millwright guest", "containerRuntimeVersion": "none://0",
			"kubeletVersion": "v0.0.0-millwright-guest", "kubeProxyVersion": "",
			"operatingSystem": "linux", "architecture": "amd64",
		},
		Conditions: conditions(now),
	}
	for _, ip := range m.Addresses {
		status.Addresses = append(status.Addresses, address{Type: "InternalIP", Address: ip})
	}
	status.Allocatable = status.Capacity
	return status
}

func conditions(now time.Time) []condition {
	stamp := now.UTC().Format(time.RFC3339)
	var all []condition
	for _, c := range []condition{
		{Type: "MemoryPressure", Status: "False", Reason: "GuestHasSufficientMemory", Message: "the guest runs no Pods"},
		{Type: "DiskPressure", Status: "False", Reason: "GuestHasNoDiskPressure", Message: "the guest runs no Pods"},
		{Type: "PIDPressure", Status: "False", Reason: "GuestHasSufficientPID", Message: "the guest runs no Pods"},
		{Type: "Ready", Status: "True", Reason: "GuestReady", Message: "the guest is posting ready status"},
	} {
		c.Heartbeat, c.Transition = stamp, stamp
		all = append(all, c)
	}
	return all
}

// node is a Node that we registered.
type node struct {
	client *kube.Client
	data   userdata.UserData
	info   Machine
	uid    string
	// reported is when the status was written last.
	reported time.Time
}

func (n *node) path() string { return nodesPath + "/" + url.PathEscape(n.data.NodeName) }

// register creates the Node, Ready from its first moment, or takes over the one that is
// there, which an earlier boot of this machine made.
func (n *node) register(ctx context.Context, now time.Time) error {
	var created object
	err := n.client.Post(ctx, nodesPath, object{
		APIVersion: "v1", Kind: "Node",
		Metadata: metadata{Name: n.data.NodeName, Labels: n.labels()},
		Spec:     nodeSpec{ProviderID: n.data.ProviderID, Taints: n.data.Taints},
		Status:   n.info.status(n.data.NodeName, now),
	}, &created)
	if kube.IsStatus(err, http.StatusConflict) {
		return n.takeOver(ctx, now)
	}
	if err != nil {
		return fmt.Errorf("registering the node: %w", err)
	}
	n.uid, n.reported = created.Metadata.UID, now
	return nil
}

// labels are those of the user data, and those that every Node has.
func (n *node) labels() map[string]string {
	labels := map[string]string{
		"kubernetes.io/hostname": n.data.NodeName, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
	}
	for key, value := range n.data.Labels {
		labels[key] = value
	}
	return labels
}

// takeOver brings labels, provider ID and status of the existing Node up to date.
// Taints are left as they are, as a kubelet leaves them: others may have changed them.
func (n *node) takeOver(ctx context.Context, now time.Time) error {
	var there existing
	if err := n.client.Get(ctx, n.path(), &there); err != nil {
		return fmt.Errorf("reading the node: %w", err)
	}
	if got := there.Spec.ProviderID; got != "" && n.data.ProviderID != "" && got != n.data.ProviderID {
		return fmt.Errorf("there is a node %s of another machine: its provider ID is %s", n.data.NodeName, got)
	}
	patch := map[string]any{"metadata": map[string]any{"labels": n.labels()}}
	if there.Spec.ProviderID == "" && n.data.ProviderID != "" {
		patch["spec"] = map[string]any{"providerID": n.data.ProviderID}
	}
	if err := n.client.Patch(ctx, n.path(), kube.MergePatch, patch); err != nil {
		return fmt.Errorf("updating the node: %w", err)
	}
	n.uid = there.Metadata.UID
	return n.patchStatus(ctx, there, now)
}

// keepStatus repeats the status when it is old, and when the Node says something else: the
// controller manager writes that of a Node which was silent, such as one whose machine was
// held, and leaves it to the Node to deny it. A Node that is not there is not made again:
// whoever deleted it did so on purpose.
func (n *node) keepStatus(ctx context.Context, now time.Time) error {
	var there existing
	// The API server may answer this from its cache.
	if err := n.client.Get(ctx, n.path()+"?resourceVersion=0", &there); err != nil {
		return fmt.Errorf("reading the node: %w", err)
	}
	if now.Sub(n.reported) < statusInterval && there.says(conditions(now)) {
		return nil
	}
	return n.patchStatus(ctx, there, now)
}

// says reports whether each of the conditions has the same status in the Node.
func (e *existing) says(conditions []condition) bool {
	return !slices.ContainsFunc(conditions, func(ours condition) bool {
		return !slices.ContainsFunc(e.Status.Conditions, ours.sameStatus)
	})
}

func (c condition) sameStatus(other condition) bool {
	return c.Type == other.Type && c.Status == other.Status
}

func (n *node) patchStatus(ctx context.Context, there existing, now time.Time) error {
	status := n.info.status(n.data.NodeName, now)
	status.Addresses = append(status.Addresses, address{Patch: "replace"})
	for i := range status.Conditions {
		ours := &status.Conditions[i]
		same := slices.IndexFunc(there.Status.Conditions, ours.sameStatus)
		if same >= 0 {
			ours.Transition = there.Status.Conditions[same].Transition
		}
	}
	err := n.client.Patch(ctx, n.path()+"/status", kube.StrategicPatch, map[string]any{"status": status})
	if err != nil {
		return fmt.Errorf("updating the node's status: %w", err)
	}
	n.reported = now
	return nil
}
