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

// Machine is the machine of a Node, for the Node's status.
type Machine struct {
	// Addresses of the machine, without prefix length.
	Addresses []string
	// CPUs is the number of processors.
	CPUs int
	// MemoryKiB is the size of the memory.
	MemoryKiB uint64
	// BootID is different after each boot.
	BootID string
	// UUID of SMBIOS. It is optional.
	UUID string
	// MachineID is the same after each boot.
	MachineID string
	// Kernel is the release of the kernel.
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

// address is an address, or with Patch the directive to replace the whole list.
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

// existing is the part of an existing Node that is read.
type existing struct {
	Metadata metadata `json:"metadata"`
	Spec     nodeSpec `json:"spec"`
	Status   struct {
		Conditions []condition `json:"conditions"`
		NodeInfo   struct {
			BootID string `json:"bootID"`
		} `json:"nodeInfo"`
	} `json:"status"`
}

// status returns the status of the Node. Its capacity for Pods is zero.
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
		{Type: "MemoryPressure", Status: "False", Reason: "GuestHasSufficientMemory", Message: "the guest does not run Pods"},
		{Type: "DiskPressure", Status: "False", Reason: "GuestHasNoDiskPressure", Message: "the guest does not run Pods"},
		{Type: "PIDPressure", Status: "False", Reason: "GuestHasSufficientPID", Message: "the guest does not run Pods"},
		{Type: "Ready", Status: "True", Reason: "GuestReady", Message: "the guest is posting ready status"},
	} {
		c.Heartbeat, c.Transition = stamp, stamp
		all = append(all, c)
	}
	return all
}

// node is the registered Node.
type node struct {
	client *kube.Client
	data   userdata.UserData
	info   Machine
	uid    string
	// reported is the time of the last write of the status.
	reported time.Time
	logf     func(format string, arguments ...any)
	// restart restarts the machine. It returns only if that fails.
	restart func()
	// restartedFor is when the Node began to wait for the in-place update that this boot performs. If empty,
	// this boot does not perform an update.
	restartedFor string
}

func (n *node) path() string { return nodesPath + "/" + url.PathEscape(n.data.NodeName) }

// register creates the Node, which is Ready immediately, or updates that of an earlier boot.
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

// labels returns the labels of the user data, and those of every Node.
func (n *node) labels() map[string]string {
	labels := map[string]string{
		"kubernetes.io/hostname": n.data.NodeName, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
	}
	for key, value := range n.data.Labels {
		labels[key] = value
	}
	return labels
}

// takeOver updates labels, provider ID and status of the existing Node. Like a kubelet, it does not change
// taints, which other clients may have changed.
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
	if there.Status.NodeInfo.BootID != n.info.BootID {
		n.restartedFor = there.awaitedUpdate()
	}
	return n.patchStatus(ctx, there, now)
}

// keepStatus writes the status when it is outdated, or when the status of the Node differs: the controller manager
// changes it after missing heartbeats, for example of a paused machine. It does not recreate a deleted Node. It
// then performs the in-place update that the Node waits for.
func (n *node) keepStatus(ctx context.Context, now time.Time) error {
	var there existing
	// The API server may serve this from its cache.
	if err := n.client.Get(ctx, n.path()+"?resourceVersion=0", &there); err != nil {
		return fmt.Errorf("reading the node: %w", err)
	}
	if now.Sub(n.reported) >= statusInterval || !there.hasStatus(conditions(now)) {
		if err := n.patchStatus(ctx, there, now); err != nil {
			return err
		}
	}
	return n.update(ctx, there)
}

// hasStatus reports whether the Node has all the conditions with the same status.
func (e *existing) hasStatus(conditions []condition) bool {
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

const (
	leasesPath = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	// leaseSeconds is the kubelet's value.
	leaseSeconds = 40
	// microTime is the form of a Lease's times.
	microTime = "2006-01-02T15:04:05.000000Z07:00"
)

type leaseSpec struct {
	Holder  string `json:"holderIdentity"`
	Seconds int    `json:"leaseDurationSeconds"`
	Renewed string `json:"renewTime"`
}

// lease is the Node's heartbeat.
type lease struct {
	client *kube.Client
	node   *node
	// version of the Lease after the last write. If empty, it is unknown.
	version string
}

// renew writes the Lease, and creates it if necessary.
func (l *lease) renew(ctx context.Context, now time.Time) error {
	if l.version == "" {
		return l.begin(ctx, now)
	}
	err := l.write(ctx, now)
	if kube.IsStatus(err, http.StatusConflict) || kube.IsStatus(err, http.StatusNotFound) {
		return l.begin(ctx, now)
	}
	return err
}

// begin creates the Lease, or updates an existing one.
func (l *lease) begin(ctx context.Context, now time.Time) error {
	l.version = ""
	var there object
	err := l.client.Get(ctx, l.path(), &there)
	switch {
	case err == nil:
		l.version = there.Metadata.ResourceVersion
		return l.write(ctx, now)
	case !kube.IsStatus(err, http.StatusNotFound):
		return fmt.Errorf("reading the lease: %w", err)
	}
	// The garbage collector deletes the lease of a node that does not exist.
	if err := l.client.Get(ctx, l.node.path(), nil); err != nil {
		return fmt.Errorf("reading the node: %w", err)
	}
	var created object
	if err := l.client.Post(ctx, leasesPath, l.object(now), &created); err != nil {
		return fmt.Errorf("creating the lease: %w", err)
	}
	l.version = created.Metadata.ResourceVersion
	return nil
}

func (l *lease) write(ctx context.Context, now time.Time) error {
	var written object
	if err := l.client.Put(ctx, l.path(), l.object(now), &written); err != nil {
		return fmt.Errorf("renewing the lease: %w", err)
	}
	l.version = written.Metadata.ResourceVersion
	return nil
}

func (l *lease) path() string { return leasesPath + "/" + url.PathEscape(l.node.data.NodeName) }

func (l *lease) object(now time.Time) object {
	name := l.node.data.NodeName
	return object{
		APIVersion: "coordination.k8s.io/v1", Kind: "Lease",
		Metadata: metadata{
			Name: name, ResourceVersion: l.version,
			Owners: []owner{{APIVersion: "v1", Kind: "Node", Name: name, UID: l.node.uid}},
		},
		Spec: leaseSpec{Holder: name, Seconds: leaseSeconds, Renewed: now.UTC().Format(microTime)},
	}
}
