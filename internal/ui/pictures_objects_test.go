package ui

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

const pictureNamespace = "machines"

// album creates the objects in pictures, with times relative to now.
type album struct {
	now time.Time
	// control and target are the objects of both clusters.
	control, target []client.Object
}

func (a *album) ago(minutes float64) metav1.Time {
	return metav1.NewTime(a.now.Add(-time.Duration(minutes * float64(time.Minute))).Truncate(time.Second))
}

// at returns the metadata of an object that was created some minutes ago. owner can be nil.
func (a *album) at(name string, minutes float64, owner client.Object, kind string) metav1.ObjectMeta {
	of := metav1.ObjectMeta{Namespace: pictureNamespace, Name: name, UID: types.UID(name), Generation: 1, CreationTimestamp: a.ago(minutes)}
	if owner != nil {
		of.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, v1alpha1.SchemeGroupVersion.WithKind(kind))}
	}
	return of
}

func (a *album) add(objects ...client.Object) { a.control = append(a.control, objects...) }

// class adds a MachineClass with its Secret.
func (a *album) class(name string) {
	a.add(
		&v1alpha1.MachineClass{
			ObjectMeta: a.at(name, 60*24*40, nil, ""), Provider: "vm", ProviderSpec: runtime.RawExtension{Raw: []byte(`{}`)},
			SecretRef: &corev1.SecretReference{Namespace: pictureNamespace, Name: name},
		},
		&corev1.Secret{ObjectMeta: a.at(name, 60*24*40, nil, ""), Data: map[string][]byte{"userData": []byte("x")}},
	)
}

// pool adds a MachineDeployment of a class and revision.
func (a *album) pool(name, class string, revision, replicas int) *v1alpha1.MachineDeployment {
	labels := map[string]string{"name": name}
	d := &v1alpha1.MachineDeployment{ObjectMeta: a.at(name, 60*24*40, nil, ""), Spec: v1alpha1.MachineDeploymentSpec{
		Replicas: int32(replicas), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: v1alpha1.MachineTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: class}}},
		Strategy: v1alpha1.MachineDeploymentStrategy{Type: v1alpha1.RollingUpdateMachineDeploymentStrategyType, RollingUpdate: &v1alpha1.RollingUpdateMachineDeployment{
			UpdateConfiguration: v1alpha1.UpdateConfiguration{MaxSurge: ptr.To(intstr.FromInt32(1)), MaxUnavailable: ptr.To(intstr.FromInt32(1))},
		}},
	}}
	d.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: strconv.Itoa(revision)}
	d.Status.ObservedGeneration = 1
	a.add(d)
	return d
}

// set adds a MachineSet of a pool.
func (a *album) set(of *v1alpha1.MachineDeployment, hash, class string, revision, replicas int, minutes float64, cause string) *v1alpha1.MachineSet {
	s := &v1alpha1.MachineSet{ObjectMeta: a.at(of.Name+"-"+hash, minutes, of, "MachineDeployment"), Spec: v1alpha1.MachineSetSpec{
		Replicas: int32(replicas), Selector: of.Spec.Selector, Template: *of.Spec.Template.DeepCopy(),
	}}
	s.Spec.Template.Spec.Class.Name = class
	s.Labels = of.Spec.Selector.MatchLabels
	s.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: strconv.Itoa(revision), "kubernetes.io/change-cause": cause}
	s.Status = v1alpha1.MachineSetStatus{Replicas: int32(replicas), ObservedGeneration: 1}
	a.add(s)
	return s
}

// machine adds a Machine of a set. The Machine was created some minutes ago, and has been in this phase since.
func (a *album) machine(of *v1alpha1.MachineSet, suffix string, minutes float64, phase v1alpha1.MachinePhase) *v1alpha1.Machine {
	m := &v1alpha1.Machine{ObjectMeta: a.at(of.Name+"-"+suffix, minutes, of, "MachineSet"), Spec: of.Spec.Template.Spec}
	m.Labels = map[string]string{"name": of.Labels["name"], v1alpha1.NodeLabelKey: m.Name}
	m.Spec.ProviderID = "millwright:///machines/" + m.Name
	m.Status.CurrentStatus = v1alpha1.CurrentStatus{Phase: phase, LastUpdateTime: a.ago(minutes - 0.7)}
	m.Status.LastOperation = v1alpha1.LastOperation{
		Type: v1alpha1.MachineOperationCreate, State: v1alpha1.MachineStateSuccessful, LastUpdateTime: a.ago(minutes - 0.7),
		Description: fmt.Sprintf("Machine %s successfully joined the cluster in 42s", m.Name),
	}
	switch phase {
	case v1alpha1.MachineRunning:
		of.Status.ReadyReplicas++
		of.Status.AvailableReplicas++
		m.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastTransitionTime: a.ago(minutes - 0.7)}}
	case v1alpha1.MachinePending:
		m.Status.CurrentStatus.LastUpdateTime = a.ago(minutes - 0.1)
		m.Status.LastOperation = v1alpha1.LastOperation{Type: v1alpha1.MachineOperationCreate, State: v1alpha1.MachineStateProcessing, LastUpdateTime: a.ago(minutes - 0.1), Description: "Creating machine on cloud provider"}
	}
	a.add(m)
	return m
}

// event adds an event on an object.
func (a *album) event(of client.Object, kind string, minutes float64, reason, message string, annotations ...string) {
	e := &corev1.Event{
		ObjectMeta: a.at(fmt.Sprintf("%s.%016x", of.GetName(), len(a.control)), minutes, nil, ""), Reason: reason, Message: message, Type: corev1.EventTypeNormal, Count: 1,
		InvolvedObject: corev1.ObjectReference{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: kind, Namespace: pictureNamespace, Name: of.GetName(), UID: of.GetUID()},
		FirstTimestamp: a.ago(minutes), LastTimestamp: a.ago(minutes),
	}
	if strings.HasPrefix(reason, "Failed") || reason == "DrainWaiting" {
		e.Type = corev1.EventTypeWarning
	}
	e.Annotations = map[string]string{}
	for i := 0; i+1 < len(annotations); i += 2 {
		e.Annotations[annotations[i]] = annotations[i+1]
	}
	a.add(e)
}

// newAlbum returns the objects at a time: a rollout that waits for a missing class, one that waits for a disruption budget,
// a pool in which a machine has failed, a complete one, and a VM that moves to another host.
func newAlbum(now time.Time) *album {
	a := &album{now: now}
	for _, name := range []string{v1alpha1.LeaseMachineController, v1alpha1.LeaseMachineControllerManager} {
		a.add(&coordinationv1.Lease{ObjectMeta: a.at(name, 60*24, nil, ""), Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To("millwright-0"), LeaseDurationSeconds: ptr.To[int32](15), RenewTime: ptr.To(metav1.NewMicroTime(now)), AcquireTime: ptr.To(metav1.NewMicroTime(a.ago(60 * 24).Time)),
		}})
	}
	a.workers()
	a.database()
	a.batch()
	gpu := a.pool("gpu", "gpu-v1", 1, 3)
	a.class("gpu-v1")
	gpu.Status.Replicas, gpu.Status.UpdatedReplicas, gpu.Status.AvailableReplicas = 3, 3, 3
	set := a.set(gpu, "7fd4c", "gpu-v1", 1, 3, 60*24*6, "")
	for i, suffix := range []string{"2m6xq", "9tkcv", "wz4rn"} {
		a.machine(set, suffix, 60*24*float64(i+3), v1alpha1.MachineRunning)
	}
	a.hosts()
	return a
}

// workers adds a pool whose new class does not exist.
func (a *album) workers() {
	const missing = `MachineClass "workers-v2" not found in namespace "machines"`
	pool := a.pool("workers", "workers-v2", 2, 6)
	a.class("workers-v1")
	updated := a.set(pool, "7b764", "workers-v2", 2, 2, 4.5, "kernel 6.12")
	old := a.set(pool, "5db94", "workers-v1", 1, 5, 60*24*12, "first image")
	for i, suffix := range []string{"ctbvs", "kk4sv", "qfqbt", "wmksx", "wml5k"} {
		a.machine(old, suffix, 60*24*(3+float64(i)), v1alpha1.MachineRunning)
	}
	for _, suffix := range []string{"lvg8z", "ztz7r"} {
		m := a.machine(updated, suffix, 4.4, v1alpha1.MachineCrashLoopBackOff)
		m.Spec.ProviderID, m.Labels = "", map[string]string{"name": "workers"}
		m.Status.CurrentStatus.LastUpdateTime = a.ago(4.3)
		m.Status.LastOperation = v1alpha1.LastOperation{Type: v1alpha1.MachineOperationCreate, State: v1alpha1.MachineStateFailed, LastUpdateTime: a.ago(4.3), Description: missing}
		a.event(m, "Machine", 4.3, "FailedCreate", missing, v1alpha1.EventAnnotationCause, v1alpha1.CauseInvalidClassInputs)
	}
	a.event(pool, "MachineDeployment", 4.5, "ScalingMachineSet", "Scaled up machine set workers-7b764 to 1: the template changed: at most 7 machines allowed during the rollout, currently 6")
	a.event(pool, "MachineDeployment", 4.4, "ScalingMachineSet", "Scaled down machine set workers-5db94 to 5: 1 machine can be removed (6 available, at least 5 required)")
	a.event(old, "MachineSet", 4.4, "SuccessfulDelete", "Deleted 1 machine (workers-5db94-p7h2d): 1 surplus machine, 5 desired")
	a.event(updated, "MachineSet", 4.4, "SuccessfulCreate", "Created 2 machines (workers-7b764-lvg8z, workers-7b764-ztz7r): 2 of 2 machines exist")
}

// database adds a pool with a machine whose drain waits for a disruption budget.
func (a *album) database() {
	pool := a.pool("database", "database-v3", 3, 4)
	for _, class := range []string{"database-v2", "database-v3"} {
		a.class(class)
	}
	updated := a.set(pool, "8c4f2", "database-v3", 3, 3, 23, "more memory")
	old := a.set(pool, "6d9b5", "database-v2", 2, 1, 60*24*9, "kernel 6.6")
	for i, suffix := range []string{"5hkzt", "d7rmp", "jx9wl"} {
		a.machine(updated, suffix, 21-6*float64(i), v1alpha1.MachineRunning)
	}
	a.machine(old, "v2cfs", 60*24*9, v1alpha1.MachineRunning)
	leaving := a.machine(old, "q8wzn", 60*24*9, v1alpha1.MachineRunning)
	leaving.DeletionTimestamp, leaving.Finalizers = ptr.To(a.ago(6.2)), []string{"machine.sapcloud.io/machine-controller-manager"}
	leaving.Status.CurrentStatus = v1alpha1.CurrentStatus{Phase: v1alpha1.MachineTerminating, LastUpdateTime: a.ago(6.2)}
	leaving.Status.LastOperation = v1alpha1.LastOperation{
		Type: v1alpha1.MachineOperationDelete, State: v1alpha1.MachineStateProcessing, LastUpdateTime: a.ago(6.1),
		Description: "Draining, waiting for pod disruption budget shop/db to allow the eviction of pod shop/db-0. " + messages.Drain,
	}
	a.event(old, "MachineSet", 6.2, "SuccessfulDelete", "Deleted 1 machine (database-6d9b5-q8wzn): 1 surplus machine, 1 desired", v1alpha1.EventAnnotationCause, v1alpha1.CauseScaledDown, v1alpha1.EventAnnotationObjects, leaving.Name)
	a.event(leaving, "Machine", 6.1, "DrainWaiting", "Waiting for pod disruption budget shop/db to allow the eviction of pod shop/db-0", v1alpha1.EventAnnotationStep, v1alpha1.StepDrain)

	node := &corev1.Node{ObjectMeta: a.at(leaving.Name, 60*24*9-0.5, nil, ""), Spec: corev1.NodeSpec{ProviderID: leaving.Spec.ProviderID, Unschedulable: true}}
	node.Namespace = ""
	node.Status.NodeInfo = corev1.NodeSystemInfo{KubeletVersion: "v1.37.2", OSImage: "Debian GNU/Linux 12 (bookworm)"}
	node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}
	for _, of := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: of, Status: corev1.ConditionFalse, Reason: "KubeletHasNo" + string(of), LastTransitionTime: a.ago(60 * 24 * 9)})
	}
	node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status", LastTransitionTime: a.ago(60 * 24 * 9)})
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: a.at("db", 60*24*90, nil, ""), Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}}}
	budget.Status = policyv1.PodDisruptionBudgetStatus{ExpectedPods: 3, CurrentHealthy: 2, DesiredHealthy: 2, ObservedGeneration: 1, Conditions: []metav1.Condition{{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, LastTransitionTime: a.ago(11)}}}
	pod := &corev1.Pod{ObjectMeta: a.at("db-0", 60*24*9, nil, ""), Spec: corev1.PodSpec{NodeName: node.Name}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	pod.Labels = map[string]string{"app": "db"}
	budget.Namespace, pod.Namespace = "shop", "shop"
	a.target = append(a.target, node, budget, pod)
}

// batch adds a pool of many machines, some of which are not Running.
func (a *album) batch() {
	pool := a.pool("batch", "batch-v7", 7, 60)
	a.class("batch-v7")
	set := a.set(pool, "c5f69", "batch-v7", 7, 60, 60*24*2, "")
	for i := range 60 {
		phase, minutes := v1alpha1.MachineRunning, 60*float64(5+i)
		switch i {
		case 17, 18, 41:
			phase, minutes = v1alpha1.MachinePending, 0.6
		case 30:
			phase = v1alpha1.MachineUnknown
		case 52:
			phase = v1alpha1.MachineFailed
		}
		a.machine(set, fmt.Sprintf("%05x", 0x2a1f3+i*7919), minutes, phase)
	}
}

// hosts adds two hosts and their VMs, one of which is migrating.
func (a *album) hosts() {
	for _, name := range []string{"host-1", "host-2"} {
		host := &corev1.Node{ObjectMeta: a.at(name, 60*24*90, nil, "")}
		host.Namespace, host.Labels = "", map[string]string{vmv1alpha1.HostKey: ""}
		host.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"), corev1.ResourcePods: resource.MustParse("110")}
		host.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		a.add(host)
	}
	for i, name := range []string{"database-8c4f2-5hkzt", "database-8c4f2-d7rmp", "database-8c4f2-jx9wl"} {
		vm := &vmv1alpha1.VirtualMachine{ObjectMeta: a.at(name, 21-6*float64(i), nil, ""), Spec: vmv1alpha1.VirtualMachineSpec{
			UUID: fmt.Sprintf("7c9e6679-7425-40de-944b-e07fc1f90ae%d", i), CPUs: 8, Memory: ptr.To(resource.MustParse("32Gi")),
		}}
		vm.Status.Phase, vm.Status.NodeName, vm.Status.Addresses, vm.Status.ActivePodName = vmv1alpha1.PhaseRunning, "host-1", []string{fmt.Sprintf("10.77.0.%d", 5+i)}, name+"-x7k2p"
		vm.Status.VolumeClaimName, vm.Status.Lease = name+"-disk", &vmv1alpha1.VirtualMachineLease{State: vmv1alpha1.LeaseOpen}
		ready := metav1.Condition{Type: vmv1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "GuestRuns", Message: "the guest runs", LastTransitionTime: a.ago(20)}
		if i == 0 {
			ready.Reason, ready.Message = "Migrating", "the VM is moving to host host-2; the guest keeps running"
			vm.Status.Migration = &vmv1alpha1.VirtualMachineMigration{
				Phase: vmv1alpha1.MigrationCopying, SourceNodeName: "host-1", TargetNodeName: "host-2", StartTime: a.ago(0.5), DoneBytes: 21 << 30, TotalBytes: 34 << 30,
			}
		}
		vm.Status.Conditions = []metav1.Condition{ready, {Type: vmv1alpha1.ConditionLiveMigratable, Status: metav1.ConditionTrue, Reason: "Migratable", LastTransitionTime: a.ago(20)}}
		a.add(vm)
	}
}
