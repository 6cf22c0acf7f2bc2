package podspec

import (
	"errors"
	"flag"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

var update = flag.Bool("update", false, "update the golden files")

// TestPods compares Pods with golden files. With -update, it writes the golden files.
func TestPods(t *testing.T) {
	plain := Settings{Image: "hypervisor:1", Endpoint: "127.0.0.1:1234", Authority: "CERTIFICATE\n"}
	own := plain
	own.Images = []string{"hypervisor:own"}
	full := plain
	full.Accelerator = "tcg"
	full.Networks = []netip.Prefix{netip.MustParsePrefix("10.77.0.0/16"), netip.MustParsePrefix("fd77::/64")}
	full.HostPorts = []uint16{16443, 8080}
	full.Overlay = Overlay{Port: vmpb.OverlayPort, MTU: 1400}
	full.Migration = Migration{Time: time.Hour, Bandwidth: 100 << 20}
	cluster, device, reachable, attached := plain, plain, plain, plain
	attached.Attachments = []string{"networks/storage", "default/office"}
	reachable.PodAddresses = true
	cluster.Options = Options{
		User: 65532, Groups: []int64{104}, KVMResource: "devices.example.com/kvm", PriorityClass: "machines", PullSecrets: []string{"registry"},
	}
	device.Options = Options{User: 65532, KVMDevice: "/dev/kvm"}
	cases := map[string]struct {
		settings Settings
		given    func(*v1alpha1.VirtualMachine)
	}{
		"cluster": {cluster, func(vm *v1alpha1.VirtualMachine) {
			vm.Status.VolumeClaimName, vm.Spec.FailureDomain = "a", "rack-7"
			vm.Spec.HostSelector = map[string]string{"pool": "fast", v1alpha1.HostKey: "other"}
			vm.Spec.AntiAffinity = &v1alpha1.AntiAffinity{Group: "etcd", Mode: v1alpha1.AntiAffinityRequired}
			vm.Spec.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
		}},
		"ports": {reachable, func(vm *v1alpha1.VirtualMachine) {
			vm.Status.VolumeClaimName = "a"
			vm.Labels = map[string]string{"vm.metropolis.monogon.dev/app": "web"}
			vm.Spec.Ports = []v1alpha1.Port{{Name: "http", Port: 80}, {Name: "metrics", Port: 9100}}
			vm.Spec.ReadinessProbe = &v1alpha1.ReadinessProbe{Port: 9100, HTTPPath: "/$(ready)", Scheme: corev1.URISchemeHTTPS}
		}},
		"udp-ports": {reachable, func(vm *v1alpha1.VirtualMachine) {
			vm.Status.VolumeClaimName = "a"
			vm.Spec.Ports = []v1alpha1.Port{
				{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}, {Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP}, {Name: "quic", Port: 443, Protocol: corev1.ProtocolUDP},
			}
		}},
		"networks": {attached, func(vm *v1alpha1.VirtualMachine) {
			vm.Spec.VolumeClaimTemplate, vm.Spec.Networks = nil, []v1alpha1.Network{
				{Name: "backup", Multus: v1alpha1.MultusNetwork{NetworkName: "networks/storage"}, MACAddress: "02:00:00:00:00:07"},
				{Name: "office", Multus: v1alpha1.MultusNetwork{NetworkName: "office"}},
			}
		}},
		"device": {device, func(vm *v1alpha1.VirtualMachine) {
			vm.Spec.VolumeClaimTemplate = nil
			vm.Spec.AntiAffinity = &v1alpha1.AntiAffinity{Group: "web", Mode: v1alpha1.AntiAffinityPreferred}
		}},
		"first": {full, func(vm *v1alpha1.VirtualMachine) {
			vm.Status.VolumeClaimName = "a"
			vm.Annotations = map[string]string{v1alpha1.AnnotationAddresses: "10.77.0.16,fd77::10"}
			vm.Spec.UserData = &v1alpha1.UserData{SecretRef: v1alpha1.SecretKeyReference{Name: "boot"}, HostName: "machine-1"}
			vm.Spec.InitialImage.Format = v1alpha1.FormatQCOW2
		}},
		"later": {own, func(vm *v1alpha1.VirtualMachine) {
			vm.Status.VolumeClaimName, vm.Status.ImagePrepared = "a", true
			vm.Spec.HypervisorImage, vm.Spec.Firmware, vm.Spec.TerminationGracePeriodSeconds = "hypervisor:own", v1alpha1.FirmwareUEFI, 120
			vm.Spec.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
			vm.Spec.Display = v1alpha1.DisplayVNC
			vm.Spec.FailureDomain = "rack-7"
		}},
		"block": {plain, func(vm *v1alpha1.VirtualMachine) {
			vm.Status.VolumeClaimName = "a"
			vm.Status.DataDisks = []v1alpha1.DataDiskStatus{{Name: "logs", VolumeClaimName: "a-logs"}, {Name: "db", VolumeClaimName: "a-db"}}
			vm.Spec.DataDisks = []v1alpha1.DataDisk{{Name: "logs"}, {Name: "db"}}
			vm.Spec.VolumeClaimTemplate.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
			vm.Spec.DataDisks[0].VolumeClaimTemplate.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		}},
		"ephemeral": {plain, func(vm *v1alpha1.VirtualMachine) {
			vm.Spec.VolumeClaimTemplate, vm.Status.ImagePrepared = nil, true
			vm.Spec.Memory = ptr.To(resource.MustParse("128Mi"))
			vm.Spec.KernelBoot = &v1alpha1.KernelBoot{
				Kernel: v1alpha1.BootFile{URL: "file:///vmlinux"}, Initrd: &v1alpha1.BootFile{URL: "file:///initrd"}, CommandLine: "a=$(POD_IP) b=$$",
			}
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			vm := fixture.VirtualMachine()
			vm.Name, vm.Namespace, vm.UID, vm.Generation = "a", "default", "11111111-2222-3333-4444-555555555555", 7
			vm.Status.ActivePodName = "a-x"
			c.given(vm)
			pod, err := Pod(vm, c.settings)
			if err != nil {
				t.Fatal(err)
			}
			wantGolden(t, name, pod)
		})
	}
}

func wantGolden(t *testing.T, name string, pod *corev1.Pod) {
	t.Helper()
	got, err := yaml.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", "pod-"+name+".yaml")
	if *update {
		if err := os.WriteFile(file, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("pod (-want +got):\n%s", diff)
	}
}

// TestGracePeriod checks that a hypervisor that can migrate has time to do so, also with a lease.
func TestGracePeriod(t *testing.T) {
	leased := &v1alpha1.VirtualMachineLease{State: v1alpha1.LeaseOpen, DurationSeconds: 60}
	cases := map[string]struct {
		strategy v1alpha1.MigrateStrategy
		lease    *v1alpha1.VirtualMachineLease
		time     time.Duration
		shutdown int32
		want     time.Duration
	}{
		"default":                  {v1alpha1.MigrateLive, nil, 0, 0, 15 * time.Minute},
		"with a lease":             {v1alpha1.MigrateLive, leased, 0, 0, 15 * time.Minute},
		"set":                      {v1alpha1.MigrateLive, leased, time.Hour, 0, time.Hour},
		"less than a shutdown":     {v1alpha1.MigrateLive, nil, time.Second, 0, 30 * time.Second},
		"shut down":                {v1alpha1.MigrateCold, nil, time.Hour, 0, 30 * time.Second},
		"shut down with a lease":   {v1alpha1.MigrateCold, leased, time.Hour, 0, 30 * time.Second},
		"long shutdown":            {v1alpha1.MigrateCold, nil, time.Hour, 300, 310 * time.Second},
		"short shutdown":           {v1alpha1.MigrateCold, nil, time.Hour, 1, 11 * time.Second},
		"migration, long shutdown": {v1alpha1.MigrateLive, nil, 0, 300, 15*time.Minute + 280*time.Second},
		"invalid, too long":        {v1alpha1.MigrateCold, nil, 0, math.MaxInt32, time.Hour + 10*time.Second},
		"invalid, negative":        {v1alpha1.MigrateCold, nil, 0, -1, 30 * time.Second},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			vm := fixture.VirtualMachine()
			vm.Spec.MigrateStrategy, vm.Spec.TerminationGracePeriodSeconds, vm.Status.Lease = c.strategy, c.shutdown, c.lease
			if got := gracePeriod(vm, Settings{Migration: Migration{Time: c.time}}); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestStartMode(t *testing.T) {
	image := &v1alpha1.InitialImage{URL: "http://x"}
	cases := map[string]struct {
		image    *v1alpha1.InitialImage
		claim    string
		prepared bool
		want     vmpb.VMSpec_StartMode
	}{
		"before the first start":          {image, "a", false, vmpb.VMSpec_SM_PREPARE_IMAGE},
		"after the first start":           {image, "a", true, vmpb.VMSpec_SM_RUN},
		"no image":                        {nil, "a", false, vmpb.VMSpec_SM_RUN},
		"an ephemeral disk is always new": {image, "", true, vmpb.VMSpec_SM_PREPARE_IMAGE},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			vm := fixture.VirtualMachine()
			vm.Spec.InitialImage, vm.Status.VolumeClaimName, vm.Status.ImagePrepared = c.image, c.claim, c.prepared
			if got := startMode(vm); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

func TestGuestSize(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Limits: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
		}}
	}
	cases := map[string]struct {
		spec         v1alpha1.VirtualMachineSpec
		accelerator  string
		cpus, memory int64
		request      string
	}{
		"defaults":               {v1alpha1.VirtualMachineSpec{}, "", 1, 512 << 20, "832Mi"},
		"with KVM":               {v1alpha1.VirtualMachineSpec{}, "kvm", 1, 512 << 20, "704Mi"},
		"emulated":               {v1alpha1.VirtualMachineSpec{}, "tcg", 1, 512 << 20, "832Mi"},
		"with or without KVM":    {v1alpha1.VirtualMachineSpec{}, "auto", 1, 512 << 20, "832Mi"},
		"set":                    {v1alpha1.VirtualMachineSpec{CPUs: 3, Memory: ptr.To(resource.MustParse("1Gi"))}, "kvm", 3, 1 << 30, "1216Mi"},
		"from limits":            {v1alpha1.VirtualMachineSpec{Resources: list("1500m", "1Gi")}, "kvm", 2, 832 << 20, ""},
		"from limits, emulated":  {v1alpha1.VirtualMachineSpec{Resources: list("1500m", "1Gi")}, "auto", 2, 704 << 20, ""},
		"set and limits":         {v1alpha1.VirtualMachineSpec{CPUs: 1, Memory: ptr.To(resource.MustParse("64Mi")), Resources: list("4", "1Gi")}, "", 1, 64 << 20, ""},
		"nothing left":           {v1alpha1.VirtualMachineSpec{Resources: list("1", "192Mi")}, "kvm", 1, 0, ""},
		"nothing left, emulated": {v1alpha1.VirtualMachineSpec{Resources: list("1", "320Mi")}, "tcg", 1, 0, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			settings := Settings{Accelerator: c.accelerator}
			if cpus, memory := guestCPUs(&c.spec), GuestMemory(&c.spec, settings); cpus != c.cpus || memory != c.memory {
				t.Errorf("%d CPUs, %d bytes; want %d, %d", cpus, memory, c.cpus, c.memory)
			}
			if c.request == "" {
				return // its Pod has the resources of the spec
			}
			if requests := podResources(&c.spec, settings).Requests; !requests.Memory().Equal(resource.MustParse(c.request)) {
				t.Errorf("the Pod requests %v, want %s", requests.Memory(), c.request)
			}
		})
	}
}

// TestPods_ImageIsPermitted checks that no Pod of a VM, which may be privileged, has an image that the operator does not
// permit.
func TestPods_ImageIsPermitted(t *testing.T) {
	settings := Settings{Image: "hypervisor:1", Images: []string{"hypervisor@sha256:0a"}, Options: Options{KVMDevice: "/dev/kvm"}}
	source, err := Pod(servedVM(), settings)
	if err != nil {
		t.Fatal(err)
	}
	for image, permitted := range map[string]bool{
		"": true, "hypervisor:1": true, "hypervisor@sha256:0a": true,
		"hypervisor": false, "hypervisor:2": false, "hypervisor:1@sha256:0b": false, "evil/hypervisor:1": false, " hypervisor:1": false,
	} {
		vm := servedVM()
		vm.Spec.HypervisorImage = image
		vm.Status.Migration = &v1alpha1.VirtualMachineMigration{SourcePodName: "a-x", TargetPodName: "a-z"}
		for what, build := range map[string]func() (*corev1.Pod, error){
			"first": func() (*corev1.Pod, error) { return Pod(vm, settings) }, "target": func() (*corev1.Pod, error) { return Target(vm, source, settings) },
			"disk server": func() (*corev1.Pod, error) { return DiskServer(vm, nil, settings) },
		} {
			pod, err := build()
			if permitted && err == nil {
				continue
			}
			if _, refused := errors.AsType[*RefusedError](err); permitted || !refused || pod != nil {
				t.Errorf("%s with image %q: %v, %v", what, image, pod, err)
			}
		}
	}
}
