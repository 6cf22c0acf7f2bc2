package explain

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// situation is the input and the expected outcome of an explanation.
type situation struct {
	given given
	// verdict is the expected verdict, and cause is the expected cause of the first finding. The cause is empty if
	// there is no finding.
	verdict report.Verdict
	cause   report.Cause
}

const (
	create     = v1alpha1.MachineOperationCreate
	health     = v1alpha1.MachineOperationHealthCheck
	failed     = v1alpha1.MachineStateFailed
	processing = v1alpha1.MachineStateProcessing
)

// existingMachines are situations of Machines that are not being deleted.
var existingMachines = map[string]situation{
	"running": {all(), report.Healthy, ""},
	"running-events": {all(
		event("MachineDeployment", "pool", "InvalidSpec", "spec.replicas: must not be negative", time.Hour),
		event("MachineSet", "pool-a", "FailedCreate", "Error creating: exceeded quota", 13*time.Minute),
		event("MachineSet", "pool-a", "BackOff", "Machines failed before they joined, 2 times in a row: the next are created in 5s at the earliest", 5*time.Minute),
		scaled(v1alpha1.CauseScaledUp, "Scaled up machine set pool-a to 4: 4 replicas desired", 4*time.Minute),
		scaled(v1alpha1.CauseScaledDown, "Scaled down machine set pool-a to 3: 3 replicas desired", 3*time.Minute)), report.Healthy, ""},
	"running-node-unhealthy": {silentKubelet(20 * time.Second), report.Healthy, v1alpha1.CauseNodeUnhealthy},
	"running-vm-full": {virtualMachine(metav1.ConditionFalse, "NoSpace", "The disk's storage is full. The guest is paused, and continues when there is free space."),
		report.Healthy, report.VirtualMachineNotReady},
	"running-vm-migrating":      {all(runningVM, migration(vmv1alpha1.MigrationCopying, "", 2*time.Minute)), report.Healthy, report.VirtualMachineMigrating},
	"running-vm-migration-slow": {all(runningVM, migration(vmv1alpha1.MigrationCopying, "", 20*time.Minute)), report.Healthy, report.VirtualMachineMigrating},
	"running-vm-not-converging": {all(runningVM, migration(vmv1alpha1.MigrationCopying, "", 2*time.Minute), func(f *MachineFacts) {
		f.VM.Status.Migration.Convergence = vmv1alpha1.MigrationNotConverging
	}), report.Healthy, report.VirtualMachineMigrating},
	"running-vm-migration-forced": {all(runningVM, migration(vmv1alpha1.MigrationCopying, "", 20*time.Minute), func(f *MachineFacts) {
		f.VM.Status.Migration.Convergence = vmv1alpha1.MigrationForced
	}), report.Healthy, report.VirtualMachineMigrating},
	"running-vm-migration-timed-out":      {all(runningVM, migration(vmv1alpha1.MigrationFailed, "TimedOut", 2*time.Minute)), report.Healthy, report.VirtualMachineMigrating},
	"running-vm-target-slow":              {all(runningVM, migration(vmv1alpha1.MigrationPreparing, "", 2*time.Minute)), report.Healthy, report.VirtualMachineMigrating},
	"running-vm-migration-failed":         {all(runningVM, migration(vmv1alpha1.MigrationFailed, "CopyFailed", 2*time.Minute)), report.Healthy, report.VirtualMachineMigrating},
	"running-vm-no-capacity":              {all(runningVM, migration(vmv1alpha1.MigrationFailed, "Unschedulable", 2*time.Minute)), report.Healthy, report.VirtualMachineMigrating},
	"running-vm-migration-failed-earlier": {all(runningVM, migration(vmv1alpha1.MigrationFailed, "CopyFailed", 2*time.Hour)), report.Healthy, ""},
	"running-vm-migration-cancelled":      {all(runningVM, migration(vmv1alpha1.MigrationFailed, "Cancelled", 2*time.Minute)), report.Healthy, ""},
	"running-vm-migrated":                 {all(runningVM, migration(vmv1alpha1.MigrationSucceeded, "", 2*time.Minute)), report.Healthy, ""},
	"running-vm-migration-waiting": {all(runningVM, func(f *MachineFacts) {
		f.VM.Annotations = map[string]string{vmv1alpha1.AnnotationMigrate: "vm-1/host-2"}
	}), report.Healthy, report.VirtualMachineMigrating},
	"running-vm-not-migratable":  {all(runningVM, notMigratable), report.Healthy, ""},
	"running-vm-restart-pending": {all(runningVM, restartPending), report.Healthy, ""},
	"running-no-manager":         {lease("", 40*time.Minute, time.Hour), report.Healthy, report.ManagerNotRunning},
	"running-in-excess": {all(func(f *MachineFacts) {
		f.Machine.Spec = *reserve.Marked(&f.Machine.Spec, reserve.NoSchedule)
		template := f.Machine.Spec.NodeTemplateSpec
		f.Target.Node.Annotations, f.Target.Node.Spec.Taints = template.Annotations, template.Spec.Taints
	}), report.Healthy, ""},
	"running-other-class": {otherClass(v1alpha1.CauseNoCapacity), report.Healthy, ""},
	"running-other-zone":  {otherClass(v1alpha1.CauseZoneSpread), report.Healthy, ""},
	"new-falls-back": {all(notCreated, phase("", 0), otherClass(v1alpha1.CauseNoCapacity),
		last(v1alpha1.MachineOperationCreate, v1alpha1.MachineStateProcessing, time.Second, "Creating machine on cloud provider: class pool-v0 has no capacity; another class is used unless that changes soon", "")), report.NotRunning, v1alpha1.CauseNoCapacity},
	"no-capacity-unfit": {all(createFailed(3*time.Minute, messages.Provider+"machine codes error: code = [ResourceExhausted] message = [zone-1 has no m5.large left]", "ResourceExhausted"),
		noted("UnfitClass", `Machines cannot fall back to class other: MachineClass "other" not found in namespace "machines"`, time.Minute, v1alpha1.CauseUnfitClass)), report.NotRunning, v1alpha1.CauseDriverFailed},
	"running-vm-to-update":  {liveUpdate("Update", `{"digest":"0"}`), report.Healthy, v1alpha1.CauseUpdatePending},
	"running-vm-updating":   {all(liveUpdate("Update", `{"digest":"{digest}","updates":["tags","cpus"],"begun":true}`), last(v1alpha1.MachineOperationUpdate, processing, time.Minute, messages.Provider+"machine codes error: code = [Unavailable] message = [the provider is unavailable]", "Unavailable")), report.Healthy, v1alpha1.CauseUpdatePending},
	"running-vm-updatable":  {liveUpdate("DryRun", `{"digest":"{digest}","updates":["tags"]}`), report.Healthy, v1alpha1.CauseUpdatePending},
	"running-vm-to-replace": {liveUpdate("Update", `{"digest":"{digest}","replacements":["size","zone: a VM cannot move"],"done":true}`), report.Healthy, v1alpha1.CauseReplacementNeeded},
	"running-vm-strategy":   {liveUpdate("Now", ""), report.Healthy, v1alpha1.CauseInvalidUpdateStrategy},
	"available":             {all(phase(v1alpha1.MachineAvailable, time.Minute), noNode, func(f *MachineFacts) { f.Target.None = true }), report.Healthy, ""},
	"new":                   {all(notCreated, phase("", 0)), report.NotRunning, report.NotStarted},
	"new-no-manager":        {all(notCreated, phase("", 0), lease("old", 2*time.Minute, time.Hour)), report.NotRunning, report.ManagerNotRunning},
	"new-class-missing":     {all(notCreated, phase("", 0), classMissing), report.NotRunning, v1alpha1.CauseInvalidClassInputs},
	"class-missing":         {all(createFailed(time.Minute, `MachineClass "pool-v1" not found in namespace "machines"`, ""), classMissing), report.NotRunning, v1alpha1.CauseInvalidClassInputs},
	"class-restored":        {createFailed(time.Minute, `MachineClass "pool-v1" not found in namespace "machines"`, ""), report.NotRunning, report.CreationBlocked},
	"class-invalid":         {all(createFailed(time.Minute, `MachineClass "pool-v1" is not valid: provider: Required value: the name of the driver`, ""), func(f *MachineFacts) { f.Class.NodeTemplate = &v1alpha1.NodeTemplate{} }), report.NotRunning, v1alpha1.CauseInvalidClassInputs},
	"secret-missing":        {all(createFailed(time.Minute, `Secret "machines/cloud" of MachineClass "pool-v1" not found`, ""), secret(Secret{Missing: true})), report.NotRunning, v1alpha1.CauseInvalidClassInputs},
	"user-data-missing":     {all(createFailed(time.Minute, missingUserData, ""), secret(Secret{})), report.NotRunning, v1alpha1.CauseInvalidClassInputs},
	"secret-not-readable":   {all(createFailed(time.Minute, missingUserData, ""), secret(Secret{Unread: true}), unread("Secret machines/cloud: forbidden")), report.NotRunning, report.CreationBlocked},
	"no-class-name":         {all(createFailed(time.Minute, "spec.class.name: Required value: the name of the class", ""), func(f *MachineFacts) { f.Machine.Spec.Class.Kind = "" }), report.NotRunning, v1alpha1.CauseInvalidSpec},
	"driver-silent":         {all(createFailed(time.Minute, messages.NoResponse+" for 15m0s", ""), noted("FailedCreate", messages.NoResponse+" for 15m0s", time.Minute, v1alpha1.CauseDriverSilent)), report.NotRunning, v1alpha1.CauseDriverSilent},
	"vm-of-other-machine":   {createFailed(time.Minute, `VM cloud:///zone-1/vm-1 already belongs to machine "pool-a-11111"`, ""), report.NotRunning, report.CreationBlocked},
	"no-capacity":           {createFailed(3*time.Minute, messages.Provider+"machine codes error: code = [ResourceExhausted] message = [zone-1 has no m5.large left]", "ResourceExhausted"), report.NotRunning, v1alpha1.CauseDriverFailed},
	"bad-credentials":       {createFailed(time.Minute, messages.Provider+"machine codes error: code = [Unauthenticated] message = [the token has expired]", "Unauthenticated"), report.NotRunning, v1alpha1.CauseDriverFailed},
	"quota-denied": {createFailed(time.Minute, messages.Provider+"machine codes error: code = [PermissionDenied] message = [error creating server for machine pool-a-x7k2p: Expected HTTP response code [201 202] when accessing "+
		"[POST https://nova.example.com:8774/v2.1/a1b2c3d4/servers], but got 403 instead: {\"forbidden\": {\"code\": 403, \"message\": \"Quota exceeded for instances: Requested 1, but already used 10 of 10 instances\"}}, request ID req-7b1d8a54-9f2e-4c3a-8f60-2d1f3f0f2f11, trace 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01]", "PermissionDenied"), report.NotRunning, v1alpha1.CauseDriverFailed},
	"bad-class":               {createFailed(time.Minute, messages.Provider+"machine codes error: code = [InvalidArgument] message = [providerSpec.size: no such size]", "InvalidArgument"), report.NotRunning, v1alpha1.CauseDriverFailed},
	"driver-without-code":     {createFailed(time.Minute, messages.Provider+"connection refused", "Unknown"), report.NotRunning, v1alpha1.CauseDriverFailed},
	"initialize-fails":        {createFailed(time.Minute, "Provider error: machine codes error: code = [Internal] message = [cannot set source check]. "+messages.Initialize, "Internal"), report.NotRunning, v1alpha1.CauseDriverFailed},
	"provider-writes-to-term": {createFailed(time.Minute, messages.Provider+"bad\x1b[31m\nnews", "Unknown"), report.NotRunning, v1alpha1.CauseDriverFailed},
	"create-elsewhere":        {all(createFailed(time.Minute, messages.Provider+lookedElsewhere, "FailedPrecondition"), elsewhere("FailedCreate")), report.NotRunning, v1alpha1.CauseInstanceElsewhere},
	"no-such-zone":            {createFailed(time.Minute, messages.Provider+"machine codes error: code = [FailedPrecondition] message = [zone \"nowhere\" does not exist]", "FailedPrecondition"), report.NotRunning, v1alpha1.CauseDriverFailed},
	"not-allowed":             {createFailed(time.Minute, messages.Provider+"machine codes error: code = [PermissionDenied] message = [virtualmachines is forbidden in the namespace \"nope\"]", "PermissionDenied"), report.NotRunning, v1alpha1.CauseDriverFailed},
	"vm-unschedulable": {all(createFailed(time.Minute, messages.Provider+"machine codes error: code = [ResourceExhausted] message = [no host has capacity]", "ResourceExhausted"),
		virtualMachine(metav1.ConditionFalse, "Scheduling", "0/2 nodes are available: 2 Insufficient memory.")), report.NotRunning, v1alpha1.CauseDriverFailed},

	"not-joined": {all(phase(v1alpha1.MachinePending, 7*time.Minute), noNode, lastCreating), report.NotRunning, report.NodeNotJoined},
	"not-joined-denied": {all(phase(v1alpha1.MachinePending, 7*time.Minute), noNode, lastCreating, event(KindMachine, "pool-a-x7k2p", "NodeCertificateDenied",
		`The token of machine "pool-a-x7k2p" may only request a certificate for "system:node:node-1", not for "system:node:debian"`, time.Minute)), report.NotRunning, report.CertificateDenied},
	"not-joined-restart":       {all(phase(v1alpha1.MachinePending, 7*time.Minute), noNode, lastCreating, lease("new", time.Second, time.Minute)), report.NotRunning, report.NodeNotJoined},
	"not-joined-own-time":      {all(phase(v1alpha1.MachinePending, 7*time.Minute), noNode, lastCreating, annotated(v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout, "10m")), report.NotRunning, report.NodeNotJoined},
	"not-joined-vm-not-ready":  {all(phase(v1alpha1.MachinePending, 7*time.Minute), noNode, lastCreating, virtualMachine(metav1.ConditionFalse, "Preparing", "120 MiB of 2048 MiB written")), report.NotRunning, report.VirtualMachineNotReady},
	"not-joined-vm-untouched":  {all(phase(v1alpha1.MachinePending, 7*time.Minute), noNode, lastCreating, untouchedVM("")), report.NotRunning, report.VirtualMachineNotReady},
	"not-joined-vm-other":      {all(phase(v1alpha1.MachinePending, 7*time.Minute), noNode, lastCreating, untouchedVM("vms-old/millwright-vm-controller")), report.NotRunning, report.VirtualMachineNotReady},
	"not-joined-vm-healthy":    {all(phase(v1alpha1.MachinePending, 7*time.Minute), noNode, lastCreating, virtualMachine(metav1.ConditionTrue, "Running", "")), report.NotRunning, report.NodeNotJoined},
	"not-joined-console":       {all(phase(v1alpha1.MachinePending, 7*time.Minute), noNode, lastCreating, virtualMachine(metav1.ConditionTrue, "Running", ""), console(hostileConsole)), report.NotRunning, report.NodeNotJoined},
	"not-joined-console-empty": {all(phase(v1alpha1.MachinePending, 7*time.Minute), noNode, lastCreating, virtualMachine(metav1.ConditionTrue, "Running", ""), console("")), report.NotRunning, report.NodeNotJoined},
	"not-joined-firmware":      {all(phase(v1alpha1.MachinePending, 7*time.Minute), noNode, lastCreating, virtualMachine(metav1.ConditionTrue, "Running", ""), console("SeaBIOS (version 1.16.2)\r\nBooting from Hard Disk...\r\nBoot failed: not a bootable disk\r\n\r\nNo bootable device.\r\n")), report.NotRunning, report.NodeNotJoined},
	"not-joined-no-image": {all(phase(v1alpha1.MachinePending, 7*time.Minute), noNode, lastCreating, virtualMachine(metav1.ConditionFalse, "ImageUnavailable",
		"initial_image: the image cannot be fetched: image https://images.example.com/releases/2026/11/"+strings.Repeat("very-long-", 12)+"name.qcow2: the server returned 404 Not Found"), vmCreating), report.NotRunning, report.VirtualMachineNotReady},
	"not-joined-no-host":   {all(phase(v1alpha1.MachinePending, 7*time.Minute), noNode, lastCreating, virtualMachine(metav1.ConditionFalse, "Unschedulable", "0/2 nodes are available: 2 Insufficient memory."), vmCreating), report.NotRunning, report.VirtualMachineNotReady},
	"not-joined-preparing": {all(phase(v1alpha1.MachinePending, 7*time.Minute), noNode, lastCreating, virtualMachine(metav1.ConditionFalse, "Preparing", "120 MiB of 2048 MiB written"), vmCreating), report.NotRunning, report.VirtualMachineNotReady},
	"joined-not-ready":     {all(phase(v1alpha1.MachinePending, 7*time.Minute), lastCreating, nodeCondition(corev1.NodeReady, corev1.ConditionFalse, "KubeletNotReady", "cni plugin not initialized", 2*time.Minute)), report.NotRunning, v1alpha1.CauseNodeUnhealthy},
	"critical-components":  {all(phase(v1alpha1.MachinePending, 7*time.Minute), lastCreating, criticalTaint), report.NotRunning, report.CriticalComponentsNotReady},
	"target-unavailable":   {all(phase(v1alpha1.MachinePending, 7*time.Minute), noNode, lastCreating, targetProblem), report.NotRunning, v1alpha1.CauseTargetUnavailable},
	"joined-just-now":      {all(phase(v1alpha1.MachinePending, 7*time.Minute), lastCreating), report.NotRunning, report.Other},

	"kubelet-silent": {all(phase(v1alpha1.MachineUnknown, 4*time.Minute), silentKubelet(4*time.Minute),
		last(health, processing, 4*time.Minute, "Machine pool-a-x7k2p is unhealthy - changing MachinePhase to Unknown. Node conditions: Ready=Unknown (NodeStatusUnknown)", "")), report.NotRunning, v1alpha1.CauseNodeUnhealthy},
	"two-bad-conditions": {all(phase(v1alpha1.MachineUnknown, 4*time.Minute), silentKubelet(4*time.Minute),
		nodeCondition(corev1.NodeDiskPressure, corev1.ConditionTrue, "KubeletHasDiskPressure", "kubelet has disk pressure", 8*time.Minute)), report.NotRunning, v1alpha1.CauseNodeUnhealthy},
	"own-node-conditions": {all(phase(v1alpha1.MachineUnknown, 4*time.Minute), nodeCondition("Corrupt", corev1.ConditionTrue, "Bad", "sectors", time.Minute), func(f *MachineFacts) {
		f.Machine.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{NodeConditions: ptr.To("Corrupt"), MachineHealthTimeout: &metav1.Duration{Duration: time.Hour}}
	}), report.NotRunning, v1alpha1.CauseNodeUnhealthy},
	"never-times-out": {all(phase(v1alpha1.MachineUnknown, 4*time.Minute), silentKubelet(4*time.Minute), func(f *MachineFacts) {
		f.Machine.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{DisableHealthTimeout: ptr.To(true)}
	}), report.NotRunning, v1alpha1.CauseNodeUnhealthy},
	"node-missing": {all(phase(v1alpha1.MachineUnknown, 4*time.Minute), noNode, last(health, processing, 4*time.Minute, "Node object went missing. Machine pool-a-x7k2p is unhealthy - changing MachineState to Unknown", "")), report.NotRunning, v1alpha1.CauseNodeMissing},
	"vm-lost":      {all(noted("Unhealthy", "VM cloud:///zone-1/vm-1 no longer exists", 4*time.Minute, v1alpha1.CauseInstanceLost), phase(v1alpha1.MachineUnknown, 4*time.Minute), silentKubelet(5*time.Minute), last(health, processing, 4*time.Minute, "VM cloud:///zone-1/vm-1 no longer exists", "")), report.NotRunning, v1alpha1.CauseInstanceLost},
	"host-unreachable-not-fenced": {all(phase(v1alpha1.MachineUnknown, 4*time.Minute), silentKubelet(3*time.Minute),
		virtualMachine(metav1.ConditionUnknown, "HostUnreachable", "Host host-1 is unreachable; the virtual machine may still be running."),
		fencedCondition(metav1.ConditionFalse, "OtherHost", `Pod vm-1 is not on node host-2; it is on node "host-1".`)), report.NotRunning, report.VirtualMachineNotReady},
	"host-unreachable-lease": {all(phase(v1alpha1.MachineUnknown, 4*time.Minute), silentKubelet(3*time.Minute),
		virtualMachine(metav1.ConditionUnknown, "HostUnreachable", "Host host-1 is unreachable; the virtual machine may still be running."),
		func(f *MachineFacts) {
			f.VM.Status.Lease = &vmv1alpha1.VirtualMachineLease{State: vmv1alpha1.LeaseOpen}
		}), report.NotRunning, report.VirtualMachineNotReady},
	"host-unreachable": {all(phase(v1alpha1.MachineUnknown, 4*time.Minute), silentKubelet(3*time.Minute),
		virtualMachine(metav1.ConditionUnknown, "HostUnreachable", "Host host-1 is unreachable; the virtual machine may still be running.")), report.NotRunning, report.VirtualMachineNotReady},
	"replacement-delayed": {all(phase(v1alpha1.MachineUnknown, 14*time.Minute), silentKubelet(14*time.Minute),
		last(health, processing, 4*time.Minute, `Machine pool-a-x7k2p health checks failing since last 10m0s. It is not Failed yet because other machines of "pool" are being replaced.`, "")), report.NotRunning, v1alpha1.CauseNodeUnhealthy},
	"zone-outage": {all(phase(v1alpha1.MachineUnknown, 14*time.Minute), silentKubelet(14*time.Minute),
		noted("ReplacementDelayed", "all machines in zone z1 are unhealthy", 4*time.Minute, v1alpha1.CauseZoneOutage),
		last(health, processing, 4*time.Minute, `Machine pool-a-x7k2p health checks failing since last 10m0s. It is not Failed yet: all machines in zone z1 are unhealthy; waiting for the zone to recover.`, "")), report.NotRunning, v1alpha1.CauseNodeUnhealthy},
	"recovered-not-observed": {all(phase(v1alpha1.MachineUnknown, 4*time.Minute), last(health, processing, 4*time.Minute, "Machine pool-a-x7k2p is unhealthy - changing MachinePhase to Unknown. Node conditions: Ready=Unknown (NodeStatusUnknown)", "")), report.NotRunning, report.Other},

	"failed-health":     {all(phase(v1alpha1.MachineFailed, time.Second), silentKubelet(10*time.Minute), failedHealth(time.Second)), report.NotRunning, v1alpha1.CauseHealthTimeout},
	"failed-join":       {all(phase(v1alpha1.MachineFailed, time.Second), noNode, last(create, failed, time.Second, "Machine pool-a-x7k2p failed to join the cluster in 20 minutes.", "")), report.NotRunning, v1alpha1.CauseCreationTimeout},
	"failed-capacity":   {all(notCreated, phase(v1alpha1.MachineFailed, time.Second), last(create, failed, time.Second, messages.Provider+"machine codes error: code = [ResourceExhausted] message = [zone-1 is full]", "ResourceExhausted")), report.NotRunning, v1alpha1.CauseDriverFailed},
	"failed-no-message": {all(phase(v1alpha1.MachineFailed, time.Second), noNode, last(create, failed, time.Second, "", "")), report.NotRunning, v1alpha1.CauseCreationTimeout},
	"failed-no-owner":   {all(noOwner, phase(v1alpha1.MachineFailed, time.Second), noNode, last(create, failed, time.Second, "Machine pool-a-x7k2p failed to join the cluster in 20 minutes.", "")), report.NotRunning, v1alpha1.CauseCreationTimeout},
	"failed-preserved":  {all(phase(v1alpha1.MachineFailed, time.Hour), silentKubelet(time.Hour), failedHealth(time.Hour), preserved), report.NotRunning, v1alpha1.CauseHealthTimeout},
	"failed-frozen-set": {all(phase(v1alpha1.MachineFailed, time.Second), silentKubelet(10*time.Minute), failedHealth(time.Second), setIs(v1alpha1.MachineSetFrozen, "OverShooting", "5 machines exist, 3 are desired")), report.NotRunning, v1alpha1.CauseHealthTimeout},
	"failed-preserved-pods": {all(phase(v1alpha1.MachineFailed, time.Hour), failedHealth(time.Hour), preserved, annotated(v1alpha1.AnnotationKeyPreserve, "auto-preserved"),
		last(health, failed, time.Hour, "VM health checks failing since last 10m0s", ""), pod("db-0", nil), budget("db", policyv1.PodDisruptionBudgetStatus{ExpectedPods: 3, CurrentHealthy: 2, DesiredHealthy: 2})), report.NotRunning, v1alpha1.CauseHealthTimeout},
	"failed-released":           {all(phase(v1alpha1.MachineFailed, time.Hour), failedHealth(time.Hour), preserved, annotated(v1alpha1.AnnotationKeyPreserve, "false")), report.NotRunning, v1alpha1.CauseHealthTimeout},
	"preserved":                 {preserved, report.Healthy, report.Preserved},
	"named-kept":                {named(ago(5 * time.Minute)), report.Healthy, v1alpha1.CauseNamedForDeletion},
	"named-kept-cordoned":       {all(named(ago(5*time.Minute)), cordoned), report.Healthy, v1alpha1.CauseNamedForDeletion},
	"named-preserved":           {all(named(ago(5*time.Minute)), cordoned, preserved, replicasChanged(ago(time.Minute))), report.Healthy, v1alpha1.CauseNamedForDeletion},
	"named-about-to-be-deleted": {all(named(ago(5*time.Minute)), replicasChanged(ago(5*time.Minute))), report.Healthy, ""},
	"preserved-by-node":         {all(preserved, preservedNode), report.Healthy, report.Preserved},
	"preserved-invalid":         {annotated(v1alpha1.AnnotationKeyPreserve, "yes"), report.Healthy, report.Other},
	"preserved-unhealthy":       {all(preserved, silentKubelet(20*time.Second)), report.Healthy, v1alpha1.CauseNodeUnhealthy},
	"preserved-when-failed":     {all(phase(v1alpha1.MachineUnknown, time.Minute), silentKubelet(time.Minute), annotated(v1alpha1.AnnotationKeyPreserve, "when-failed")), report.NotRunning, v1alpha1.CauseNodeUnhealthy},
	"update-not-started":        {candidate, report.Healthy, report.InPlaceUpdate},
	"update-candidate":          {updating(v1alpha1.CandidateForUpdate), report.Healthy, report.InPlaceUpdate},
	"update-selected":           {all(updating(v1alpha1.SelectedForUpdate), last(v1alpha1.MachineOperationDrainNode, processing, time.Minute, "Drain failed due to - pod disruption budget shop/db allows no eviction. Will retry in next sync.", ""), pod("db-0", nil), budget("db", policyv1.PodDisruptionBudgetStatus{ExpectedPods: 3, CurrentHealthy: 2, DesiredHealthy: 2})), report.Healthy, report.InPlaceUpdate},
	"update-ready":              {all(phase(v1alpha1.MachineInPlaceUpdating, 3*time.Minute), updating(v1alpha1.ReadyForUpdate), silentKubelet(time.Minute)), report.NotRunning, report.InPlaceUpdate},
	"update-ready-own-time":     {all(phase(v1alpha1.MachineInPlaceUpdating, 3*time.Minute), updating(v1alpha1.ReadyForUpdate), updateTimeout(5*time.Minute)), report.NotRunning, report.InPlaceUpdate},
	"update-without-a-target":   {all(phase(v1alpha1.MachineInPlaceUpdating, 3*time.Minute), noNode, targetProblem, last(v1alpha1.MachineOperationInPlaceUpdate, processing, 3*time.Minute, "Machine pool-a-x7k2p is undergoing an in-place update", "")), report.NotRunning, report.InPlaceUpdate},
	"update-timed-out":          {all(phase(v1alpha1.MachineInPlaceUpdateFailed, time.Minute), updating(v1alpha1.ReadyForUpdate)), report.NotRunning, report.InPlaceUpdate},
	"update-succeeded":          {all(phase(v1alpha1.MachineInPlaceUpdateSuccessful, time.Minute), updating(v1alpha1.UpdateSuccessful), silentKubelet(time.Minute)), report.NotRunning, report.InPlaceUpdate},
	"updated":                   {updating(v1alpha1.UpdateSuccessful), report.Healthy, ""},
	"update-failed":             {all(phase(v1alpha1.MachineInPlaceUpdateFailed, time.Minute), last(v1alpha1.MachineOperationInPlaceUpdate, failed, time.Minute, "Machine pool-a-x7k2p in-place update failed", ""), updateFailed), report.NotRunning, report.InPlaceUpdate},
}

// deletingMachines are situations of Machines that are being deleted.
var deletingMachines = map[string]situation{
	"delete-not-started": {deleted(time.Second), report.Deleting, report.NotStarted},
	"delete-no-manager":  {all(deleted(6*time.Minute), lease("", 7*time.Minute, time.Hour)), report.Deleting, report.ManagerNotRunning},
	"drain-budget": {all(deletes(processing, time.Minute, "Draining, waiting for pod disruption budget shop/db to allow the eviction of pod shop/db-0. "+messages.Drain),
		pod("db-0", nil), budget("db", policyv1.PodDisruptionBudgetStatus{ExpectedPods: 3, CurrentHealthy: 2, DesiredHealthy: 2})), report.Deleting, report.DisruptionBudget},
	"drain-budget-never": {all(deletes(failed, time.Minute, `Drain failed due to - error while evicting pod "db-0": pod disruption budget shop/db is misconfigured and requires zero voluntary evictions. Will retry in next sync. `+messages.Drain),
		pod("db-0", nil), pod("web", terminating(10*time.Second)), budget("db", policyv1.PodDisruptionBudgetStatus{ExpectedPods: 2, CurrentHealthy: 2, DesiredHealthy: 2})), report.Deleting, report.DisruptionBudgetForbids},
	"drain-budget-failed": {all(deletes(processing, time.Minute, "Draining, waiting for pod disruption budget shop/db to allow the eviction of pod shop/db-0. "+messages.Drain),
		pod("db-0", nil), budget("db", policyv1.PodDisruptionBudgetStatus{}), func(f *MachineFacts) {
			f.Target.Budgets[0].Generation = 1
			f.Target.Budgets[0].Status.Conditions[0].Reason = policyv1.SyncFailedReason
			f.Target.Budgets[0].Status.Conditions[0].Message = "cannot find the scale of statefulsets.apps.kruise.io db"
		}), report.Deleting, report.DisruptionBudgetForbids},
	"drain-only-pod": {all(deletes(processing, time.Minute, "Draining, waiting for pod disruption budget shop/db to allow the eviction of pod shop/db-0. "+messages.Drain),
		pod("db-0", nil), budget("db", policyv1.PodDisruptionBudgetStatus{ExpectedPods: 1, CurrentHealthy: 1, DesiredHealthy: 1})), report.Deleting, report.DisruptionBudgetForbids},
	"drain-two-budgets": {all(deletes(failed, time.Minute, `Drain failed due to - error while evicting pod "db-0": This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.. Will retry in next sync. `+messages.Drain),
		pod("db-0", nil), budget("db", policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1}), budget("all", policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1})), report.Deleting, report.DisruptionBudgetForbids},
	"drain-pod-finalizer": {all(deletes(processing, time.Minute, "Draining, waiting for pod shop/db-0 to terminate. "+messages.Drain), pod("db-0", func(p *corev1.Pod) {
		terminating(5 * time.Minute)(p)
		p.Finalizers = []string{"example.com/backup"}
	})), report.Deleting, report.PodStuck},
	"drain-pod-hangs":      {all(deletes(processing, time.Minute, "Draining, waiting for pod shop/db-0 to terminate. "+messages.Drain), pod("db-0", terminating(5*time.Minute))), report.Deleting, report.PodStuck},
	"drain-pod-terminates": {all(deletes(processing, 10*time.Second, "Draining, waiting for pod shop/db-0 to terminate. "+messages.Drain), pod("db-0", terminating(10*time.Second)), daemon), report.Deleting, report.PodTerminating},
	"drain-many-pods":      {all(deletes(processing, time.Minute, "Draining, waiting for pod shop/db-0 to terminate and 19 more. "+messages.Drain), manyPods), report.Deleting, report.PodStuck},
	"drain-volume":         {all(deletes(processing, time.Minute, "Draining, waiting for volume pv-1 of pod shop/db-0 to be detached. "+messages.Drain), attachment(detachFails)), report.Deleting, report.VolumeAttached},
	"drain-forced":         {all(deletes(processing, time.Minute, "Draining, waiting for pod shop/db-0 to terminate. "+messages.Drain), pod("db-0", nil), labelled(v1alpha1.LabelKeyForceDeletion, "True")), report.Deleting, report.EvictionPending},
	"drain-node-silent":    {all(deletes(processing, time.Minute, "Draining, waiting for pod shop/db-0 to terminate. "+messages.Drain), pod("db-0", terminating(2*time.Minute)), silentKubelet(3*time.Minute)), report.Deleting, v1alpha1.CauseNodeUnhealthy},
	"drain-restarted": {all(deletes(processing, time.Minute, "Draining, waiting for pod shop/db-0 to terminate. "+messages.Drain), pod("db-0", nil),
		annotated(v1alpha1.AnnotationKeyDrainSince, ago(time.Minute).UTC().Format(time.RFC3339))), report.Deleting, report.EvictionPending},
	"drain-target-unavailable": {all(deletes(failed, time.Minute, "Drain failed due to - the target cluster does not respond. Will retry in next sync. "+messages.Drain), noNode, targetProblem), report.Deleting, v1alpha1.CauseTargetUnavailable},
	"detaching":                {all(labelled(v1alpha1.LabelKeyForceDeletion, "True"), deletes(processing, time.Minute, "Force Drain successful. "+messages.DeleteAttachments), attachment(func(a *storagev1.VolumeAttachment) { a.DeletionTimestamp = ptr.To(ago(time.Minute)) })), report.Deleting, report.VolumeAttached},
	"vm-not-deleted":           {all(driverFailed("PermissionDenied", v1alpha1.StepDeleteInstance, "not allowed to delete vm-1", 5*time.Minute), deletes(failed, 5*time.Minute, messages.Provider+"machine codes error: code = [PermissionDenied] message = [not allowed to delete vm-1]. "+messages.DeleteVM)), report.Deleting, v1alpha1.CauseDriverFailed},
	"vm-driver-silent": {all(noted("FailedDelete", messages.NoResponse+" for 15m0s.", 5*time.Minute, v1alpha1.CauseDriverSilent, v1alpha1.EventAnnotationStep, v1alpha1.StepDeleteInstance),
		deletes(failed, 5*time.Minute, messages.NoResponse+" for 15m0s. "+messages.DeleteVM)), report.Deleting, v1alpha1.CauseDriverSilent},
	"vm-remains": {deletes(processing, 5*time.Minute, "The provider still has the VM. "+messages.DeleteVM), report.Deleting, v1alpha1.CauseInstanceExists},
	"vm-remains-now": {all(deletes(processing, time.Second, "The provider still has the VM. "+messages.DeleteVM),
		event("Machine", "pool-a-x7k2p", "DeletingVM", "The provider still has the VM", time.Second, v1alpha1.EventAnnotationCause, v1alpha1.CauseInstanceExists, v1alpha1.EventAnnotationStep, v1alpha1.StepDeleteInstance)), report.Deleting, v1alpha1.CauseInstanceExists},
	"vm-being-deleted": {deletes(processing, time.Minute, "Drain successful. "+messages.DeleteVM), report.Deleting, v1alpha1.CauseInstanceExists},
	"vm-finalizer": {all(deletes(processing, 5*time.Minute, "The provider still has the VM. "+messages.DeleteVM), virtualMachine(metav1.ConditionFalse, "Terminating", "The virtual machine is being deleted."), func(f *MachineFacts) {
		f.VM.DeletionTimestamp, f.VM.Finalizers = ptr.To(ago(5*time.Minute)), []string{"vm.metropolis.monogon.dev/vm-controller"}
	}), report.Deleting, v1alpha1.CauseInstanceExists},
	"delete-without-class":  {all(deletes(failed, time.Minute, `VM cloud:///zone-1/vm-1 cannot be deleted: MachineClass "pool-v1" not found in namespace "machines". `+messages.DeleteVM), classMissing), report.Deleting, v1alpha1.CauseInvalidClassInputs},
	"delete-claimed-twice":  {all(noted("FailedDelete", `VM cloud:///zone-1/vm-1 also belongs to machine "pool-a-22222"`, time.Minute, v1alpha1.CauseInstanceShared, v1alpha1.EventAnnotationStep, v1alpha1.StepIdentify), deletes(failed, time.Minute, `VM cloud:///zone-1/vm-1 also belongs to machine "pool-a-22222"; clear spec.providerID of the object that does not own the VM. `+messages.Terminating)), report.Deleting, v1alpha1.CauseInstanceShared},
	"delete-elsewhere":      {all(notCreated, elsewhere("FailedDelete"), deletes(failed, time.Minute, messages.Provider+lookedElsewhere+messages.Terminating)), report.Deleting, v1alpha1.CauseInstanceElsewhere},
	"delete-cannot-find":    {all(driverFailed("Unavailable", v1alpha1.StepIdentify, "try later", time.Minute), deletes(failed, time.Minute, messages.Provider+"machine codes error: code = [Unavailable] message = [try later]. "+messages.Terminating)), report.Deleting, v1alpha1.CauseDriverFailed},
	"node-not-deleted":      {all(noNode, deletes(processing, time.Minute, "VM deletion was successful. The target cluster does not respond. "+messages.DeleteNode), targetProblem), report.Deleting, v1alpha1.CauseTargetUnavailable},
	"node-finalizer":        {all(deletes(processing, time.Minute, messages.DeleteNode), nodeWithFinalizer), report.Deleting, report.Finalizer},
	"finalizer-of-others":   {all(deletes(processing, 5*time.Minute, messages.Terminating), finalizerSetBy("example.com/backup", "backup-operator")), report.Deleting, report.Finalizer},
	"finalizer-foreground":  {all(deletes(processing, 5*time.Minute, messages.Terminating), finalizerSetBy(metav1.FinalizerDeleteDependents, "")), report.Deleting, report.Finalizer},
	"delete-after-failure":  {all(deletes(processing, time.Minute, "Drain successful. "+messages.DeleteVM), setDeletes(v1alpha1.CauseMachineFailed, "Deleted 1 machine (pool-a-x7k2p): it failed: Machine pool-a-x7k2p failed to join the cluster in 20 minutes.", 6*time.Minute)), report.Deleting, v1alpha1.CauseInstanceExists},
	"delete-chosen":         {all(deletes(processing, time.Minute, "Drain successful. "+messages.DeleteVM), annotated(v1alpha1.AnnotationKeyMachinePriority, "1"), annotated(v1alpha1.AnnotationKeyMarkedForDeletionTime, "2026-11-21T02:53:00Z")), report.Deleting, v1alpha1.CauseInstanceExists},
	"delete-old-revision":   {all(deletes(processing, time.Minute, "Drain successful. "+messages.DeleteVM), func(f *MachineFacts) { f.Deployment.Annotations[v1alpha1.AnnotationKeyRevision] = "2" }), report.Deleting, v1alpha1.CauseInstanceExists},
	"delete-unhealthy-node": {all(deletes(processing, time.Minute, "Drain successful. "+messages.DeleteVM), silentKubelet(20*time.Minute), nodeCondition(v1alpha1.NodeTerminationCondition, corev1.ConditionTrue, v1alpha1.NodeUnhealthy, "", 6*time.Minute)), report.Deleting, v1alpha1.CauseInstanceExists},
	"delete-scaled-down": {all(deletes(processing, time.Minute, "Drain successful. "+messages.DeleteVM),
		scaled(v1alpha1.CauseScaledDown, "Scaled down machine set pool-a to 4: 4 replicas desired", 20*time.Minute),
		scaled(v1alpha1.CauseScaledDown, "Scaled down machine set pool-a to 3: 3 replicas desired", 7*time.Minute),
		setDeletes(v1alpha1.CauseSurplus, "Deleted 1 machine (pool-a-x7k2p): 1 surplus machine, 3 desired", 6*time.Minute),
		scaled(v1alpha1.CauseScaledDown, "Scaled down machine set pool-a to 2: 2 replicas desired", 2*time.Minute)), report.Deleting, v1alpha1.CauseInstanceExists},
	"delete-node-deleted": {all(deletes(processing, time.Minute, "Drain successful. "+messages.DeleteVM), event("Machine", "pool-a-x7k2p", "NodeDeleted", "Node node-1 was deleted; deleting the machine, too", 6*time.Minute)), report.Deleting, v1alpha1.CauseInstanceExists},
	"delete-set-deleted":  {all(deletes(processing, time.Minute, "Drain successful. "+messages.DeleteVM), func(f *MachineFacts) { f.Set.DeletionTimestamp = ptr.To(ago(7 * time.Minute)) }), report.Deleting, v1alpha1.CauseInstanceExists},
}

// deletedMachines are situations of Machines that no longer exist.
var deletedMachines = map[string]situation{
	"gone-failed-health": {all(noMachine,
		event("Machine", "pool-a-x7k2p", "FailedHealth", "Machine pool-a-x7k2p health checks failing since last 10m0s. Updating machine phase to Failed. Node Conditions: Ready=Unknown (NodeStatusUnknown)", 20*time.Minute),
		setDeletes(v1alpha1.CauseMachineFailed, "Deleted 1 machine (pool-a-x7k2p): it failed: Machine pool-a-x7k2p health checks failing since last 10m0s. Updating machine phase to Failed. Node Conditions: Ready=Unknown (NodeStatusUnknown)", 20*time.Minute),
		event("Machine", "pool-a-x7k2p", "Deleted", "VM cloud:///zone-1/vm-1 and its node are gone", 15*time.Minute)), report.Gone, v1alpha1.CauseMachineFailed},
	"gone-rollout": {all(noMachine,
		scaled(v1alpha1.CauseScaledDown, "Scaled down machine set pool-a to 2: 1 machine can be removed (4 available, at least 3 required)", 31*time.Minute),
		setDeletes(v1alpha1.CauseSurplus, "Deleted 1 machine (pool-a-x7k2p): 1 surplus machine, 2 desired", 30*time.Minute)), report.Gone, v1alpha1.CauseSurplus},
	"gone-scaled-down-many": {all(noMachine,
		setDeletes(v1alpha1.CauseSurplus, "Deleted 7 machines (pool-a-a, pool-a-x7k2p, pool-a-c, pool-a-d, pool-a-e and 2 more): 7 surplus machines, 3 desired", 30*time.Minute)), report.Gone, v1alpha1.CauseSurplus},
	"gone-marked": {all(noMachine,
		event("MachineDeployment", "pool", "MachineMarked", "Machine pool-a-x7k2p is deleted first: it was named for deletion in an annotation of the deployment", 31*time.Minute,
			v1alpha1.EventAnnotationCause, v1alpha1.CauseNamedForDeletion, v1alpha1.EventAnnotationObjects, "pool-a-x7k2p"),
		setDeletes(v1alpha1.CauseSurplus, "Deleted 1 machine (pool-a-x7k2p): 1 surplus machine, 2 desired", 30*time.Minute)), report.Gone, v1alpha1.CauseNamedForDeletion},
	"gone-many-failures": {all(noMachine,
		setDeletes(v1alpha1.CauseMachineFailed, "Deleted 1 machine (pool-a-x7k2p): it failed: Machine pool-a-x7k2p failed to join the cluster in 20 minutes.", 30*time.Minute)), report.Gone, v1alpha1.CauseMachineFailed},
	"gone-set-deleted":       {all(noMachine, setDeletes(v1alpha1.CauseOwnerDeleted, "Deleted 1 machine (pool-a-x7k2p): the machine set is being deleted", 30*time.Minute)), report.Gone, v1alpha1.CauseOwnerDeleted},
	"gone-named":             {all(noMachine, setDeletes(v1alpha1.CauseNamedForDeletion, "Deleted 1 machine (pool-a-x7k2p): it was named for deletion", 30*time.Minute)), report.Gone, v1alpha1.CauseNamedForDeletion},
	"gone-node-deleted":      {all(noMachine, event("Machine", "pool-a-x7k2p", "NodeDeleted", "Node node-1 was deleted; deleting the machine, too", 30*time.Minute), event("Machine", "pool-a-x7k2p", "Deleted", "VM cloud:///zone-1/vm-1 and its node are gone", 29*time.Minute)), report.Gone, v1alpha1.CauseNodeDeleted},
	"gone-manually":          {all(noMachine, event("Machine", "pool-a-x7k2p", "Joined", "Machine pool-a-x7k2p successfully joined the cluster in 2m0s", 50*time.Minute), event("Machine", "pool-a-x7k2p", "Deleted", "VM cloud:///zone-1/vm-1 and its node are gone", 29*time.Minute)), report.Gone, report.Unexplained},
	"gone-manually-crashing": {all(noMachine, event("Machine", "pool-a-x7k2p", "FailedCreate", "MachineClass \"pool-v1\" not found in namespace \"machines\"", 50*time.Minute), event("Machine", "pool-a-x7k2p", "Deleted", "There was no VM to delete", 29*time.Minute)), report.Gone, report.Unexplained},
	"gone-failed-join-only":  {all(noMachine, event("Machine", "pool-a-x7k2p", "FailedJoin", "Machine pool-a-x7k2p failed to join the cluster in 20 minutes.", 30*time.Minute)), report.Gone, v1alpha1.CauseMachineFailed},
	"gone-recovered":         {all(noMachine, event("Machine", "pool-a-x7k2p", "FailedJoin", "Machine pool-a-x7k2p failed to join the cluster in 20 minutes.", 40*time.Minute), event("Machine", "pool-a-x7k2p", "Joined", "Machine pool-a-x7k2p successfully re-joined the cluster", 39*time.Minute)), report.Gone, report.Unexplained},
	"gone-summary":           {all(noMachine, failedMachines), report.Gone, v1alpha1.CauseMachineFailed},
	"gone-no-trace":          {all(noMachine, setDeletes(v1alpha1.CauseNamedForDeletion, "Deleted 1 machine (pool-a-x7k2p2): it was named for deletion", 30*time.Minute)), report.NotFound, ""},
	"gone-mistyped":          {all(noMachine, func(f *MachineFacts) { f.Names = []string{"pool-a-x7k2q", "other-12345"} }), report.NotFound, ""},
}

// TestReport_RemovesControlCharacters checks that a provider's message cannot move the cursor, and that the first sentence is a single
// line.
func TestReport_RemovesControlCharacters(t *testing.T) {
	var text bytes.Buffer
	if err := report.Print(&text, Machine(facts(existingMachines["provider-writes-to-term"].given), now)); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(text.String(), "\x1b\r\t") {
		t.Errorf("control characters in %q", text.String())
	}
	if first, _, _ := strings.Cut(text.String(), "\n"); !strings.Contains(first, "news") {
		t.Errorf("the first line is %q; want the end of the message", first)
	}
}

// TestMachine_DoesNotModifyFacts checks that a second explanation of the same facts is the same.
func TestMachine_DoesNotModifyFacts(t *testing.T) {
	for _, table := range []map[string]situation{existingMachines, deletingMachines, deletedMachines} {
		for _, name := range slices.Sorted(maps.Keys(table)) {
			f := facts(table[name].given)
			first := Machine(f, now)
			if diff := cmp.Diff(first, Machine(f, now)); diff != "" {
				t.Errorf("%s: the second report differs (-first +second):\n%s", name, diff)
			}
		}
	}
}

// vmCreating sets the phase of a VM that has not run yet.
func vmCreating(f *MachineFacts) { f.VM.Status.Phase = vmv1alpha1.PhaseCreating }

func classMissing(f *MachineFacts) { f.Class, f.Secrets, f.ClassMissing = nil, nil, true }

func lastCreating(f *MachineFacts) {
	last(create, processing, 7*time.Minute, "Creating machine on cloud provider", "")(f)
}

func secret(s Secret) given {
	return func(f *MachineFacts) {
		s.Key = types.NamespacedName{Namespace: f.Key.Namespace, Name: "cloud"}
		f.Secrets = []Secret{s}
	}
}

func unread(text string) given { return func(f *MachineFacts) { f.Unread = append(f.Unread, text) } }

func annotated(key, value string) given {
	return func(f *MachineFacts) { metav1.SetMetaDataAnnotation(&f.Machine.ObjectMeta, key, value) }
}

func labelled(key, value string) given {
	return func(f *MachineFacts) { f.Machine.Labels[key] = value }
}

func criticalTaint(f *MachineFacts) {
	f.Target.Node.Spec.Taints = []corev1.Taint{{Key: v1alpha1.TaintKeyCriticalComponentsNotReady, Effect: corev1.TaintEffectNoSchedule}}
}

func targetProblem(f *MachineFacts) {
	f.Target.Problem = "dial tcp 10.0.0.1:443: connect: connection refused"
}

func failedHealth(since time.Duration) given {
	return last(health, failed, since, "Machine pool-a-x7k2p health checks failing since last 10m0s. Updating machine phase to Failed. Node Conditions: Ready=Unknown (NodeStatusUnknown)", "")
}

func preserved(f *MachineFacts) {
	annotated(v1alpha1.AnnotationKeyPreserve, "now")(f)
	f.Machine.Status.CurrentStatus.PreserveExpiryTime = ptr.To(metav1.NewTime(now.Add(95 * time.Hour)))
}

func setIs(kind v1alpha1.MachineSetConditionType, reason, message string) given {
	return func(f *MachineFacts) {
		f.Set.Status.Conditions = []v1alpha1.MachineSetCondition{{
			Type: kind, Status: v1alpha1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: ago(time.Hour),
		}}
	}
}

// updating sets the state of the in-place update of the node, which started a minute ago.
func updating(reason string) given {
	return nodeCondition(v1alpha1.NodeInPlaceUpdate, corev1.ConditionTrue, reason, "", time.Minute)
}

// candidate makes the node a candidate for an in-place update that no machine controller has processed.
func candidate(f *MachineFacts) {
	f.Target.Node.Labels = map[string]string{v1alpha1.LabelKeyNodeCandidateForUpdate: "true"}
}

func updateTimeout(d time.Duration) given {
	return func(f *MachineFacts) {
		f.Machine.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{MachineInPlaceUpdateTimeout: &metav1.Duration{Duration: d}}
	}
}

// preservedNode requests the preservation on the node.
func preservedNode(f *MachineFacts) {
	f.Machine.Annotations = map[string]string{v1alpha1.AnnotationKeyLastAppliedPreserve: "now"}
	f.Target.Node.Annotations = map[string]string{v1alpha1.AnnotationKeyPreserve: "now"}
}

func updateFailed(f *MachineFacts) {
	updating(v1alpha1.UpdateFailed)(f)
	f.Target.Node.Annotations = map[string]string{v1alpha1.AnnotationKeyMachineUpdateFailedReason: "no space left on /boot"}
}

func daemon(f *MachineFacts) {
	pod("agent", func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", Controller: ptr.To(true)}}
	})(f)
}

func manyPods(f *MachineFacts) {
	for i := range 20 {
		pod("db-"+string(rune('a'+i)), terminating(time.Duration(i)*5*time.Second))(f)
	}
}

func detachFails(a *storagev1.VolumeAttachment) {
	a.DeletionTimestamp = ptr.To(ago(5 * time.Minute))
	a.Status.DetachError = &storagev1.VolumeError{Time: ago(time.Minute), Message: "rpc error: volume is busy"}
}

func nodeWithFinalizer(f *MachineFacts) {
	f.Target.Node.DeletionTimestamp, f.Target.Node.Finalizers = ptr.To(ago(time.Minute)), []string{"example.com/inventory"}
}

func failedMachines(f *MachineFacts) {
	f.Set.Status.FailedMachines = &[]v1alpha1.MachineSummary{{
		Name: f.Key.Name, OwnerRef: "pool-a",
		LastOperation: v1alpha1.LastOperation{Type: create, State: failed, Description: "Machine pool-a-x7k2p failed to join the cluster in 20 minutes.", LastUpdateTime: ago(40 * time.Minute)},
	}}
}

// TestJSON checks that the JSON output contains everything that the text contains, under stable names.
func TestJSON(t *testing.T) {
	got := Machine(facts(deletingMachines["drain-budget-never"].given, setDeletes(v1alpha1.CauseNamedForDeletion, "Deleted 1 machine (pool-a-x7k2p): it was named for deletion", time.Minute), unread("x")), now)
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	var back report.Report
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, back, cmpopts.IgnoreFields(report.Finding{}, "Statement")); diff != "" {
		t.Errorf("after a round trip (-want +got):\n%s", diff)
	}
	var keys map[string]any
	if err := json.Unmarshal(text, &keys); err != nil {
		t.Fatal(err)
	}
	want := []string{"advice", "answer", "at", "events", "identity", "machine", "namespace", "next", "replaced", "since", "unread", "verdict", "why"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(keys))); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
}

// TestMachine_LegacyFinalizerBelongsToManager checks that the finalizer of an old version of MCM is not reported as one of
// another program.
func TestMachine_LegacyFinalizerBelongsToManager(t *testing.T) {
	old := func(f *MachineFacts) { f.Machine.Finalizers = []string{v1alpha1.FinalizerLegacy} }
	for _, f := range Machine(facts(deleted(time.Minute), old), now).Why {
		if f.Cause == report.Finalizer {
			t.Errorf("unexpected finding %q", f.Text)
		}
	}
}

// TestMachine_IsNotReplacedByMachineSetBeingDeleted checks that no replacement is announced if the set is being deleted.
func TestMachine_IsNotReplacedByMachineSetBeingDeleted(t *testing.T) {
	setDeleted := func(f *MachineFacts) { f.Set.DeletionTimestamp = &metav1.Time{Time: now} }
	got := Machine(facts(phase(v1alpha1.MachinePending, time.Minute), noNode, setDeleted), now)
	var next []string
	for _, step := range got.Next {
		next = append(next, step.Text)
	}
	if text := strings.Join(next, "; "); !strings.Contains(text, "it is not replaced, because machine set") {
		t.Errorf("next steps: %q", text)
	}
}
