package apiserver

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/config"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

const (
	uuid     = "0c5f2cc6-1f0c-4a55-9d4b-6a2d6f0f3b11"
	checksum = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// vmClient returns a strict client for VirtualMachines and CRDs.
func vmClient(t *testing.T, e *env.Env) client.Client {
	t.Helper()
	scheme := env.NewScheme()
	must(t, vmv1alpha1.AddToScheme(scheme))
	must(t, apiextensionsv1.AddToScheme(scheme))
	c, err := client.New(e.Admin, client.Options{Scheme: scheme})
	must(t, err)
	return client.WithFieldValidation(c, metav1.FieldValidationStrict)
}

func newVM(namespace string, change func(*vmv1alpha1.VirtualMachineSpec)) *vmv1alpha1.VirtualMachine {
	vm := &vmv1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{GenerateName: "vm-", Namespace: namespace}}
	if change != nil {
		change(&vm.Spec)
	}
	return vm
}

func everyField(spec *vmv1alpha1.VirtualMachineSpec) {
	*spec = vmv1alpha1.VirtualMachineSpec{
		InitialImage: &vmv1alpha1.InitialImage{
			URL: "https://example.com/disk.img", Checksum: checksum, Format: vmv1alpha1.FormatQCOW2,
		},
		HypervisorImage: "example.com/hypervisor:1",
		Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
		},
		CPUs:   2,
		Memory: ptr.To(resource.MustParse("768Mi")),
		VolumeClaimTemplate: &vmv1alpha1.VolumeClaimTemplate{
			Metadata: vmv1alpha1.VolumeClaimMetadata{
				Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"},
			},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
				},
			},
		},
		VMIPs:           []string{"192.0.2.1/32", "2001:db8::1"},
		Ports:           []vmv1alpha1.Port{{Name: "http", Port: 80}, udpPort("quic", 80)},
		FailureDomain:   "rack-7",
		MigrateStrategy: vmv1alpha1.MigrateCold,
		RunStrategy:     vmv1alpha1.RunRerunOnFailure,
		Mode:            vmv1alpha1.ModePause,
		LeaseMode:       vmv1alpha1.LeaseFullLeases,

		Migration: &vmv1alpha1.MigrationSettings{
			Bandwidth: ptr.To(resource.MustParse("100Mi")), DowntimeLimitMilliseconds: 500, AllowAutoConverge: ptr.To(false),
			CompletionTimeoutSecondsPerGiB: 60, CompletionTimeoutPolicy: vmv1alpha1.CompletionTimeoutCancel,
		},
		LeaseDurationSeconds: 30, TerminationGracePeriodSeconds: 120,
		UUID:     uuid,
		UserData: &vmv1alpha1.UserData{SecretRef: vmv1alpha1.SecretKeyReference{Name: "pool", Key: "cloud-init"}},
		KernelBoot: &vmv1alpha1.KernelBoot{
			Kernel:      vmv1alpha1.BootFile{URL: "file:///boot/vmlinuz", Checksum: checksum},
			Initrd:      &vmv1alpha1.BootFile{URL: "http://example.com/initrd"},
			CommandLine: "console=ttyS0",
		},
	}
}

// TestVirtualMachine_IsStoredWithoutLoss checks that the API server keeps every field of spec and status.
func TestVirtualMachine_IsStoredWithoutLoss(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	c := vmClient(t, e)
	vm := newVM(e.Namespace, everyField)
	want := vm.DeepCopy()
	must(t, c.Create(t.Context(), vm))
	want.Status = vmv1alpha1.VirtualMachineStatus{
		VirtualMachineAuthority: vmv1alpha1.VirtualMachineAuthority{
			ActivePodName: "vm-1", ActivePodUID: uuid, ActiveRunID: "18446744073709551615", VolumeClaimName: "vm-1",
		},
		Phase: vmv1alpha1.PhaseLost, ImagePrepared: true, NodeName: "host-1",
		Addresses: []string{"192.0.2.1", "2001:db8::1"},
		Lease: &vmv1alpha1.VirtualMachineLease{
			State: vmv1alpha1.LeaseSuspected, Transitions: 3, FencingToken: 7, DurationSeconds: 30,
			TransitionTime: metav1.Time{Time: time.Unix(1800000000, 0)},
		},
		Conditions: []metav1.Condition{{
			Type: vmv1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "NoAnswer",
			LastTransitionTime: metav1.Time{Time: time.Unix(1800000000, 0)},
		}},
		ObservedGeneration: 1,
	}
	vm.Status = want.Status
	must(t, c.Status().Update(t.Context(), vm))

	got := &vmv1alpha1.VirtualMachine{}
	must(t, c.Get(t.Context(), client.ObjectKeyFromObject(vm), got))
	if diff := cmp.Diff(want.Spec, got.Spec); diff != "" {
		t.Errorf("spec (-written +stored):\n%s", diff)
	}
	if diff := cmp.Diff(want.Status, got.Status, cmpopts.EquateApproxTime(0)); diff != "" {
		t.Errorf("status (-written +stored):\n%s", diff)
	}
}

func TestVirtualMachine_Defaults(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	vm := newVM(e.Namespace, func(spec *vmv1alpha1.VirtualMachineSpec) {
		spec.UserData = &vmv1alpha1.UserData{SecretRef: vmv1alpha1.SecretKeyReference{Name: "pool"}}
	})
	must(t, vmClient(t, e).Create(t.Context(), vm))
	want := vmv1alpha1.VirtualMachineSpec{
		MigrateStrategy: vmv1alpha1.MigrateLive, RunStrategy: vmv1alpha1.RunAlways, Mode: vmv1alpha1.ModeRun, LeaseMode: vmv1alpha1.LeaseStorageLocking,
		UserData: &vmv1alpha1.UserData{SecretRef: vmv1alpha1.SecretKeyReference{Name: "pool", Key: "userData"}},
	}
	if diff := cmp.Diff(want, vm.Spec); diff != "" {
		t.Errorf("spec after defaults (-want +got):\n%s", diff)
	}
}

func tcpPort(name string, number int32) vmv1alpha1.Port {
	return vmv1alpha1.Port{Name: name, Port: number, Protocol: corev1.ProtocolTCP}
}

func udpPort(name string, number int32) vmv1alpha1.Port {
	return vmv1alpha1.Port{Name: name, Port: number, Protocol: corev1.ProtocolUDP}
}

// TestVirtualMachine_InvalidIsRejected checks that invalid objects are rejected, and that the response names
// the field.
func TestVirtualMachine_InvalidIsRejected(t *testing.T) {
	t.Parallel()
	type spec = vmv1alpha1.VirtualMachineSpec
	ips := func(ips ...string) func(*spec) { return func(s *spec) { s.VMIPs = ips } }
	image := func(image vmv1alpha1.InitialImage) func(*spec) { return func(s *spec) { s.InitialImage = &image } }
	gibibyte := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	claim := func(change func(*corev1.PersistentVolumeClaimSpec)) func(*spec) {
		return func(s *spec) {
			s.VolumeClaimTemplate = &vmv1alpha1.VolumeClaimTemplate{}
			s.VolumeClaimTemplate.Spec.Resources.Requests = maps.Clone(gibibyte)
			change(&s.VolumeClaimTemplate.Spec)
		}
	}
	other := corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "other"}
	tests := map[string]struct {
		change func(*spec)
		field  string // empty if accepted
	}{
		"one address of each version": {change: ips("2001:db8::1/128", "192.0.2.1")},
		"two IPv4 addresses":          {change: ips("192.0.2.1", "192.0.2.2/32"), field: "spec.vmIPs"},
		"two IPv6 addresses":          {change: ips("2001:db8::1", "2001:db8::2"), field: "spec.vmIPs"},
		"three addresses":             {change: ips("192.0.2.1", "2001:db8::1", "2001:db8::2"), field: "spec.vmIPs"},
		"an IPv4 network":             {change: ips("192.0.2.0/24"), field: "spec.vmIPs"},
		"an IPv6 network":             {change: ips("2001:db8::1/32"), field: "spec.vmIPs"},
		"a name as address":           {change: ips("example.com"), field: "spec.vmIPs"},
		"an empty address":            {change: ips(""), field: "spec.vmIPs"},
		"image from a file":           {change: image(vmv1alpha1.InitialImage{URL: "file:///disk.img"})},
		"image without URL":           {change: image(vmv1alpha1.InitialImage{}), field: "spec.initialImage.url"},
		"image over FTP":              {change: image(vmv1alpha1.InitialImage{URL: "ftp://a/b"}), field: "spec.initialImage.url"},
		"image with another checksum": {change: image(vmv1alpha1.InitialImage{URL: "http://a", Checksum: "md5:00"}), field: "spec.initialImage.checksum"},
		"image with sha512":           {change: image(vmv1alpha1.InitialImage{URL: "http://a", Checksum: "sha512:" + strings.Repeat("0a", 64)})},
		"image with a short sha512":   {change: image(vmv1alpha1.InitialImage{URL: "http://a", Checksum: "sha512:" + strings.Repeat("0a", 32)}), field: "spec.initialImage.checksum"},
		"image of an unknown format":  {change: image(vmv1alpha1.InitialImage{URL: "http://a", Format: "VMDK"}), field: "spec.initialImage.format"},
		"negative CPUs":               {change: func(s *spec) { s.CPUs = -1 }, field: "spec.cpus"},
		"some memory":                 {change: func(s *spec) { s.Memory = ptr.To(resource.MustParse("1")) }},
		"no memory":                   {change: func(s *spec) { s.Memory = &resource.Quantity{} }, field: "spec.memory"},
		"negative memory":             {change: func(s *spec) { s.Memory = ptr.To(resource.MustParse("-1Gi")) }, field: "spec.memory"},
		"UUID in capitals":            {change: func(s *spec) { s.UUID = strings.ToUpper(uuid) }, field: "spec.uuid"},
		"unknown mode":                {change: func(s *spec) { s.Mode = "Sleep" }, field: "spec.mode"},
		"a short lease":               {change: func(s *spec) { s.LeaseDurationSeconds = 5 }, field: "spec.leaseDurationSeconds"},
		"no time to shut down":        {change: func(s *spec) { s.TerminationGracePeriodSeconds = -1 }, field: "spec.terminationGracePeriodSeconds"},
		"hours to shut down":          {change: func(s *spec) { s.TerminationGracePeriodSeconds = 3601 }, field: "spec.terminationGracePeriodSeconds"},
		"slow migrations": {change: func(s *spec) {
			s.Migration = &vmv1alpha1.MigrationSettings{Bandwidth: ptr.To(resource.MustParse("64Ki")), DowntimeLimitMilliseconds: 20000, CompletionTimeoutSecondsPerGiB: 3600}
		}},
		"migrations at 1 byte/s": {change: func(s *spec) { s.Migration = &vmv1alpha1.MigrationSettings{Bandwidth: ptr.To(resource.MustParse("1"))} }, field: "spec.migration.bandwidth"},
		"migrations at 2 TiB/s": {change: func(s *spec) {
			s.Migration = &vmv1alpha1.MigrationSettings{Bandwidth: ptr.To(resource.MustParse("2Ti"))}
		}, field: "spec.migration.bandwidth"},
		"a long downtime":          {change: func(s *spec) { s.Migration = &vmv1alpha1.MigrationSettings{DowntimeLimitMilliseconds: 20001} }, field: "spec.migration.downtimeLimitMilliseconds"},
		"a negative timeout":       {change: func(s *spec) { s.Migration = &vmv1alpha1.MigrationSettings{CompletionTimeoutSecondsPerGiB: -1} }, field: "spec.migration.completionTimeoutSecondsPerGiB"},
		"unknown timeout policy":   {change: func(s *spec) { s.Migration = &vmv1alpha1.MigrationSettings{CompletionTimeoutPolicy: "Stop"} }, field: "spec.migration.completionTimeoutPolicy"},
		"a long lease":             {change: func(s *spec) { s.LeaseDurationSeconds = 601 }, field: "spec.leaseDurationSeconds"},
		"unknown lease mode":       {change: func(s *spec) { s.LeaseMode = "None" }, field: "spec.leaseMode"},
		"unknown migrate strategy": {change: func(s *spec) { s.MigrateStrategy = "Warm" }, field: "spec.migrateStrategy"},
		"user data of no Secret":   {change: func(s *spec) { s.UserData = &vmv1alpha1.UserData{} }, field: "spec.userData.secretRef.name"},
		"permitted fields of a claim": {change: claim(func(c *corev1.PersistentVolumeClaimSpec) {
			c.StorageClassName, c.VolumeMode, c.AccessModes = ptr.To("fast"), ptr.To(corev1.PersistentVolumeBlock), []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		})},
		"claim without resources": {change: claim(func(c *corev1.PersistentVolumeClaimSpec) { c.Resources = corev1.VolumeResourceRequirements{} })},
		"clone of another claim":  {change: claim(func(c *corev1.PersistentVolumeClaimSpec) { c.DataSource = &other }), field: "spec.volumeClaimTemplate.spec"},
		"claim from a reference": {change: claim(func(c *corev1.PersistentVolumeClaimSpec) {
			c.DataSourceRef = &corev1.TypedObjectReference{Kind: other.Kind, Name: other.Name}
		}), field: "spec.volumeClaimTemplate.spec"},
		"claim of a certain volume": {change: claim(func(c *corev1.PersistentVolumeClaimSpec) { c.VolumeName = "pv" }), field: "spec.volumeClaimTemplate.spec"},
		"claim of selected volumes": {change: claim(func(c *corev1.PersistentVolumeClaimSpec) { c.Selector = &metav1.LabelSelector{} }), field: "spec.volumeClaimTemplate.spec"},
		"claim with attributes":     {change: claim(func(c *corev1.PersistentVolumeClaimSpec) { c.VolumeAttributesClassName = ptr.To("gold") }), field: "spec.volumeClaimTemplate.spec"},
		"claim with limits":         {change: claim(func(c *corev1.PersistentVolumeClaimSpec) { c.Resources.Limits = gibibyte }), field: "spec.volumeClaimTemplate.spec.resources"},
		"claim of CPUs": {change: claim(func(c *corev1.PersistentVolumeClaimSpec) {
			c.Resources.Requests[corev1.ResourceCPU] = resource.MustParse("1")
		}), field: "spec.volumeClaimTemplate.spec.resources"},
		"clone as a data disk": {change: func(s *spec) {
			s.DataDisks = []vmv1alpha1.DataDisk{{Name: "logs"}}
			s.DataDisks[0].VolumeClaimTemplate.Spec.DataSource = &other
		}, field: "spec.dataDisks[0].volumeClaimTemplate.spec"},
		"networks":                     {change: networks("storage", "networks/storage.v2")},
		"network without attachment":   {change: networks(""), field: "spec.networks[0].multus.networkName"},
		"network with a path":          {change: networks("a/b/c"), field: "spec.networks[0].multus.networkName"},
		"network with a list":          {change: networks("a,kube-system/b"), field: "spec.networks[0].multus.networkName"},
		"network with a group address": {change: func(s *spec) { networks("a")(s); s.Networks[0].MACAddress = "01:00:00:00:00:01" }, field: "spec.networks[0].macAddress"},
		"network with an address":      {change: func(s *spec) { networks("a")(s); s.Networks[0].MACAddress = "02:00:00:00:00:01" }},
		"duplicate network name":       {change: func(s *spec) { networks("a", "b")(s); s.Networks[1].Name = "net0" }, field: "spec.networks"},
		"nine networks":                {change: networks("a", "b", "c", "d", "e", "f", "g", "h", "i"), field: "spec.networks"},
		"firmware UEFI":                {change: func(s *spec) { s.Firmware = vmv1alpha1.FirmwareUEFI }},
		"unknown firmware":             {change: func(s *spec) { s.Firmware = "uefi" }, field: "spec.firmware"},
		"firmware UEFI with a kernel": {change: func(s *spec) {
			s.Firmware, s.KernelBoot = vmv1alpha1.FirmwareUEFI, &vmv1alpha1.KernelBoot{Kernel: vmv1alpha1.BootFile{URL: "file:///vmlinux"}}
		}, field: "spec.firmware"},
		"ports of both protocols":     {change: func(s *spec) { s.Ports = []vmv1alpha1.Port{tcpPort("a", 53), udpPort("b", 53), {Name: "c", Port: 54}} }},
		"two TCP ports of a number":   {change: func(s *spec) { s.Ports = []vmv1alpha1.Port{tcpPort("a", 53), {Name: "b", Port: 53}} }, field: "spec.ports"},
		"two UDP ports of a number":   {change: func(s *spec) { s.Ports = []vmv1alpha1.Port{tcpPort("a", 80), udpPort("b", 53), udpPort("c", 53)} }, field: "spec.ports"},
		"ports of one name":           {change: func(s *spec) { s.Ports = []vmv1alpha1.Port{tcpPort("a", 53), udpPort("a", 53)} }, field: "spec.ports[1]"},
		"port of another protocol":    {change: func(s *spec) { s.Ports = []vmv1alpha1.Port{{Name: "a", Port: 53, Protocol: corev1.ProtocolSCTP}} }, field: "spec.ports[0].protocol"},
		"UDP without a port to check": {change: func(s *spec) { s.Ports = []vmv1alpha1.Port{udpPort("a", 53)} }, field: "spec.readinessProbe.port"},
		"UDP with a path to check": {change: func(s *spec) {
			s.Ports, s.ReadinessProbe = []vmv1alpha1.Port{udpPort("a", 53)}, &vmv1alpha1.ReadinessProbe{HTTPPath: "/"}
		}, field: "spec.readinessProbe.port"},
		"UDP with a port to check": {change: func(s *spec) {
			s.Ports, s.ReadinessProbe = []vmv1alpha1.Port{udpPort("a", 53)}, &vmv1alpha1.ReadinessProbe{Port: 22}
		}},
		"no ports":                     {change: func(s *spec) { s.Ports = []vmv1alpha1.Port{} }},
		"display":                      {change: func(s *spec) { s.Display = vmv1alpha1.DisplayVNC }},
		"unknown display":              {change: func(s *spec) { s.Display = "SPICE" }, field: "spec.display"},
		"kernel boot without a kernel": {change: func(s *spec) { s.KernelBoot = &vmv1alpha1.KernelBoot{} }, field: "spec.kernelBoot.kernel.url"},
	}
	e := env.New(t)
	c := vmClient(t, e)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := c.Create(t.Context(), newVM(e.Namespace, test.change), client.DryRunAll)
			if test.field == "" {
				must(t, err)
				return
			}
			if !refusedFor(err, test.field) {
				t.Errorf("got %v, want Invalid for %s", err, test.field)
			}
		})
	}
}

// TestVirtualMachine_PoliciesReject checks that the policies reject VMs in the namespace of the VM controller, and
// annotations that storage drivers may obey, unless an update leaves them unchanged.
func TestVirtualMachine_PoliciesReject(t *testing.T) {
	t.Parallel()
	e := env.New(t, env.WithOwn())
	c := vmClient(t, e)
	annotated := func(key string) func(*vmv1alpha1.VirtualMachineSpec) {
		return func(spec *vmv1alpha1.VirtualMachineSpec) {
			template := vmv1alpha1.VolumeClaimTemplate{Metadata: vmv1alpha1.VolumeClaimMetadata{Annotations: map[string]string{key: "other"}}}
			spec.DataDisks = []vmv1alpha1.DataDisk{{Name: "logs", VolumeClaimTemplate: template}}
		}
	}
	old := newVM(e.Namespace, annotated("trident.netapp.io/cloneFromPVC"))
	must(t, c.Create(t.Context(), old))
	must(t, e.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "millwright-system"}}))
	must(t, controlplane.Apply(t.Context(), e.Admin, config.Files, "policy/virtual-machines.yaml", ""))
	for name, test := range map[string]struct {
		vm     *vmv1alpha1.VirtualMachine
		reason metav1.StatusReason // empty if accepted
	}{
		"namespace of the VM controller": {newVM("millwright-system", nil), metav1.StatusReasonForbidden},
		"another namespace":              {newVM(e.Namespace, nil), ""},
		"annotation of a storage driver": {newVM(e.Namespace, annotated("trident.netapp.io/cloneFromPVC")), metav1.StatusReasonInvalid},
		"annotation without a prefix":    {newVM(e.Namespace, annotated("note")), ""},
		"annotation of the root disk": {newVM(e.Namespace, func(spec *vmv1alpha1.VirtualMachineSpec) {
			annotated("k8s.io/CloneRequest")(spec)
			spec.VolumeClaimTemplate, spec.DataDisks = &spec.DataDisks[0].VolumeClaimTemplate, nil
		}), metav1.StatusReasonInvalid},
	} {
		gomega.NewWithT(t).Eventually(func() metav1.StatusReason {
			return apierrors.ReasonForError(c.Create(t.Context(), test.vm.DeepCopy(), client.DryRunAll))
		}).WithTimeout(env.WaitTimeout).Should(gomega.Equal(test.reason), name)
	}
	old.Spec.CPUs = 2
	must(t, c.Update(t.Context(), old))
	old.Spec.DataDisks[0].VolumeClaimTemplate.Metadata.Annotations["px/snapshot-source-pvc"] = "other"
	if err := c.Update(t.Context(), old); !apierrors.IsInvalid(err) {
		t.Errorf("got %v, want Invalid", err)
	}
}

// refusedFor reports whether the API server called that field, or a part of it, invalid.
func refusedFor(err error, field string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	for _, cause := range status.Status().Details.Causes {
		if strings.HasPrefix(cause.Field, field) {
			return true
		}
	}
	return false
}

func TestVirtualMachine_UUIDIsImmutable(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	c := vmClient(t, e)
	vm := newVM(e.Namespace, nil)
	must(t, c.Create(t.Context(), vm))
	vm.Spec.UUID = uuid
	must(t, c.Update(t.Context(), vm))
	for _, other := range []string{"", "11111111-2222-3333-4444-555555555555"} {
		changed := vm.DeepCopy()
		changed.Spec.UUID = other
		if err := c.Update(t.Context(), changed); !refusedFor(err, "spec.uuid") {
			t.Errorf("UUID %q: got %v, want Invalid", other, err)
		}
	}
	vm.Spec.Mode = vmv1alpha1.ModePause
	must(t, c.Update(t.Context(), vm))
}

func TestVirtualMachine_DisplayIsImmutable(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	c := vmClient(t, e)
	for _, display := range []vmv1alpha1.Display{vmv1alpha1.DisplayVNC, vmv1alpha1.DisplayNone, ""} {
		vm := newVM(e.Namespace, func(s *vmv1alpha1.VirtualMachineSpec) { s.Display = display })
		must(t, c.Create(t.Context(), vm))
		for _, other := range []vmv1alpha1.Display{vmv1alpha1.DisplayVNC, vmv1alpha1.DisplayNone, ""} {
			changed := vm.DeepCopy()
			changed.Spec.Display = other
			err := c.Update(t.Context(), changed, client.DryRunAll)
			if same := (display == vmv1alpha1.DisplayVNC) == (other == vmv1alpha1.DisplayVNC); same && err != nil || !same && !refusedFor(err, "spec.display") {
				t.Errorf("from %q to %q: got %v", display, other, err)
			}
		}
	}
}

func TestVirtualMachine_FirmwareIsImmutable(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	c := vmClient(t, e)
	for _, firmware := range []vmv1alpha1.Firmware{vmv1alpha1.FirmwareUEFI, vmv1alpha1.FirmwareBIOS, ""} {
		vm := newVM(e.Namespace, func(s *vmv1alpha1.VirtualMachineSpec) { s.Firmware = firmware })
		must(t, c.Create(t.Context(), vm))
		for _, other := range []vmv1alpha1.Firmware{vmv1alpha1.FirmwareUEFI, vmv1alpha1.FirmwareBIOS, ""} {
			changed := vm.DeepCopy()
			changed.Spec.Firmware = other
			err := c.Update(t.Context(), changed, client.DryRunAll)
			if same := (firmware == vmv1alpha1.FirmwareUEFI) == (other == vmv1alpha1.FirmwareUEFI); same && err != nil || !same && !refusedFor(err, "spec.firmware") {
				t.Errorf("from %q to %q: got %v", firmware, other, err)
			}
		}
	}
}

// networks returns a change that adds networks.
func networks(names ...string) func(*vmv1alpha1.VirtualMachineSpec) {
	return func(s *vmv1alpha1.VirtualMachineSpec) {
		for i, name := range names {
			s.Networks = append(s.Networks, vmv1alpha1.Network{Name: fmt.Sprintf("net%d", i), Multus: vmv1alpha1.MultusNetwork{NetworkName: name}})
		}
	}
}

func TestVirtualMachine_NetworksAreImmutable(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	c := vmClient(t, e)
	for _, before := range [][]string{nil, {"a"}, {"a", "b"}} {
		vm := newVM(e.Namespace, networks(before...))
		must(t, c.Create(t.Context(), vm))
		for _, after := range [][]string{nil, {"a"}, {"b"}, {"a", "b"}, {"b", "a"}} {
			changed := vm.DeepCopy()
			changed.Spec.Networks = nil
			networks(after...)(&changed.Spec)
			err := c.Update(t.Context(), changed, client.DryRunAll)
			if same := slices.Equal(before, after); same && err != nil || !same && !refusedFor(err, "spec.networks") {
				t.Errorf("from %q to %q: got %v", before, after, err)
			}
		}
	}
}

// TestVirtualMachine_OldObjectsCanBeEdited checks that an object that was created under other rules can still be edited,
// so that it can lose its finalizers, but that no new mistakes can be added.
func TestVirtualMachine_OldObjectsCanBeEdited(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.New(t, env.WithOwn())
	c := vmClient(t, e)
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "virtualmachines." + vmv1alpha1.GroupName},
	}
	must(t, c.Get(t.Context(), client.ObjectKeyFromObject(crd), crd))
	rules := crd.DeepCopy()
	spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	for _, field := range []string{"vmIPs", "mode", "memory", "cpus"} {
		spec.Properties[field] = withoutRules(spec.Properties[field])
	}
	must(t, c.Update(t.Context(), crd))

	bad := func(s *vmv1alpha1.VirtualMachineSpec) {
		s.VMIPs, s.Mode, s.CPUs = []string{"192.0.2.1", "192.0.2.2"}, "Sleep", -1
		s.Memory = &resource.Quantity{}
	}
	old := newVM(e.Namespace, bad)
	old.Finalizers = []string{"example.com/keep"}
	eventually := gomega.NewWithT(t).Eventually
	eventually(func() error { return c.Create(t.Context(), old) }).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())
	rules.ResourceVersion = crd.ResourceVersion
	must(t, c.Update(t.Context(), rules))
	eventually(func() bool {
		return apierrors.IsInvalid(c.Create(t.Context(), newVM(e.Namespace, bad), client.DryRunAll))
	}).WithTimeout(env.WaitTimeout).Should(gomega.BeTrue())

	old.Spec.HypervisorImage = "example.com/hypervisor:2"
	must(t, c.Update(t.Context(), old))
	old.Status.Phase = vmv1alpha1.PhaseStopped
	must(t, c.Status().Update(t.Context(), old))
	worse := old.DeepCopy()
	worse.Spec.VMIPs = []string{"192.0.2.1", "192.0.2.3"}
	if err := c.Update(t.Context(), worse); !refusedFor(err, "spec.vmIPs") {
		t.Errorf("got %v, want Invalid", err)
	}
	old.Finalizers = nil
	must(t, c.Update(t.Context(), old))
	must(t, c.Delete(t.Context(), old))
}

// withoutRules removes all validation rules of a field except its type.
func withoutRules(schema apiextensionsv1.JSONSchemaProps) apiextensionsv1.JSONSchemaProps {
	return apiextensionsv1.JSONSchemaProps{
		Type: schema.Type, Items: schema.Items, XListType: schema.XListType, Format: schema.Format,
		XIntOrString: schema.XIntOrString,
	}
}

// TestVirtualMachine_AuthorityIsSwappedOnce checks that of two writers that have read the same authority, only one can change
// it.
func TestVirtualMachine_AuthorityIsSwappedOnce(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	c := vmClient(t, e)
	vm := newVM(e.Namespace, nil)
	must(t, c.Create(t.Context(), vm))
	first, second := vm.DeepCopy(), vm.DeepCopy()
	first.Status.ActivePodName, second.Status.ActivePodName = "first", "second"
	must(t, c.Status().Update(t.Context(), first))
	if err := c.Status().Update(t.Context(), second); !apierrors.IsConflict(err) {
		t.Errorf("got %v, want Conflict", err)
	}
}
