// Package podspec builds the Pods and the persistent volume claims of VMs.
package podspec

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/ipam"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

const (
	// ContainerName is the name of the hypervisor's container.
	ContainerName = "hypervisor"
	// ServerContainerName is the name of the container that serves the disks of a VM.
	ServerContainerName = "disk-server"

	volumeRun      = "run"
	volumeDisk     = "disk"
	volumeUserData = "user-data"
	volumeToken    = "token"
	volumeIdentity = "identity"

	// annotationGeneration has the generation of the VM from which a Pod was created.
	annotationGeneration = "vm.metropolis.monogon.dev/generation"
	// annotationSource is set on the target of a migration. Its value is the name of the source Pod.
	annotationSource = "vm.metropolis.monogon.dev/migration-source"
	// AcceleratorKVM is the value of Settings.Accelerator that disables emulation.
	AcceleratorKVM = "kvm"
	// DefaultShutdownTime is how long a guest may take to shut down by default, like the hypervisor's Timing.Grace.
	DefaultShutdownTime = 20 * time.Second
	maxShutdownTime     = time.Hour
	// exitTime is how long a hypervisor may take to terminate in addition to its guest.
	exitTime = 10 * time.Second
	// DefaultGracePeriod is the result of GracePeriod by default.
	DefaultGracePeriod = DefaultShutdownTime + exitTime
	// tokenSeconds is the lifetime of a Pod's service account token.
	tokenSeconds = 3600
)

// Settings are the settings that the Pods of all VMs have in common.
type Settings struct {
	// Image is the hypervisor image for VMs that do not set one.
	Image string
	// Images are the other images that VMs may set, as exact references. If empty, VMs may set only Image.
	Images []string
	// Attachments are the NetworkAttachmentDefinitions that VMs may name in their networks, as NAMESPACE/NAME. If empty,
	// VMs cannot have secondary networks.
	Attachments []string
	// Namespace is the VM controller's own namespace. VMs in it get no Pods, because guests can read the Secrets of
	// their namespace. If empty, VMs may be in any namespace.
	Namespace string
	// Controller is the name of the VM controller, as in AnnotationController. Hypervisor Pods get it as an annotation
	// of that name. If empty, they get none.
	Controller string
	// Endpoint is the gRPC target of the VM controller.
	Endpoint string
	// Authority has the certificates of the authorities that sign the identities of the controller and the hypervisors,
	// in PEM form. If empty, another authority issues them.
	Authority string
	// Certificates is the volume with a hypervisor's certificate if another authority issues it. If nil, there is no
	// such volume.
	Certificates *Certificates
	// Accelerator is the QEMU accelerator: auto, kvm or tcg. If empty, the hypervisor's default is used.
	Accelerator string
	// Networks are the prefixes of the user-mode network. If empty, guests have no network.
	Networks []netip.Prefix
	// HostPorts are the TCP ports on a host's loopback interface that guests may connect to.
	HostPorts []uint16
	// Overlay configures the network between guests on different hosts.
	Overlay Overlay
	// PodAddresses is true if each Pod has an address of its own. If it is false, Pods would compete for the ports of
	// guests, and they are not opened.
	PodAddresses bool
	// Migration configures live migrations.
	Migration Migration
	// Options are the settings of the cluster's operator.
	Options Options
}

// Overlay configures the network between guests on different hosts.
type Overlay struct {
	// Port is the UDP port of hypervisors. If 0, guests on different hosts cannot reach each other.
	Port uint16
	// MTU is the length of the longest packet between guests, in bytes. If 0, hypervisors derive it from the network
	// interfaces of their Pods.
	MTU int
}

// Migration configures live migrations.
type Migration struct {
	// Time is how long a hypervisor that must leave its host may take to migrate its guest. It includes the time for
	// which the hypervisor waits for a migration slot, and the time for a shutdown if the migration fails. If 0,
	// DefaultMigrationTime is used.
	Time time.Duration
	// HostShutdown is how long hosts give a hypervisor to terminate when they shut down or evict it, without deleting its
	// Pod. If 0, the time is not known, and the guest is shut down instead of migrated.
	HostShutdown time.Duration
	// Bandwidth limits the copying of memory and the copying of disks, each, in bytes per second. If 0, QEMU's
	// default applies to memory, and disks are not limited.
	Bandwidth uint64
	// MigrationDefaults apply to VMs that set no others.
	MigrationDefaults
}

// DefaultMigrationTime is the default of Migration.Time.
const DefaultMigrationTime = 15 * time.Minute

// Pod returns the Pod of a VM's next hypervisor, under the name that the status reserves. If the VM may not have one,
// the error is a RefusedError.
func Pod(vm *v1alpha1.VirtualMachine, s Settings) (*corev1.Pod, error) {
	spec := vmSpec(vm, s)
	if Served(vm) {
		useServedDisks(spec)
	}
	return podOf(vm, spec, s)
}

// podOf returns a hypervisor Pod with the given spec for the hypervisor.
func podOf(vm *v1alpha1.VirtualMachine, of *vmpb.VMSpec, s Settings) (*corev1.Pod, error) {
	pod, err := basePod(vm, of, s)
	if err != nil {
		return nil, err
	}
	if addresses := ipam.Of(vm); len(addresses) > 0 {
		pod.Annotations[v1alpha1.AnnotationAddresses] = strings.Join(addresses, ",")
	}
	if s.Controller != "" {
		pod.Annotations[v1alpha1.AnnotationController] = s.Controller
	}
	addAntiAffinity(vm, pod)
	if s.PodAddresses {
		addPorts(vm, pod)
	}
	if err := addNetworks(vm, pod); err != nil {
		return nil, err
	}
	s.Options.apply(pod)
	return pod, nil
}

// basePod returns the parts that hypervisor Pods and disk server Pods have in common. Every Pod of a VM is built here,
// so this is where a Pod is refused.
func basePod(vm *v1alpha1.VirtualMachine, of *vmpb.VMSpec, s Settings) (*corev1.Pod, error) {
	if why := Refusal(vm, s); why != "" {
		return nil, &RefusedError{Message: why}
	}
	spec, err := compact(of)
	if err != nil {
		return nil, err
	}
	volumes := volumesFor(vm, of, s)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: of.GetPodName(), Namespace: vm.Namespace,
			Labels:          map[string]string{v1alpha1.LabelVM: vm.Name},
			Annotations:     map[string]string{annotationGeneration: strconv.FormatInt(vm.Generation, 10)},
			OwnerReferences: []metav1.OwnerReference{OwnerReference(vm)},
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			ServiceAccountName:            "default",
			AutomountServiceAccountToken:  ptr.To(false),
			EnableServiceLinks:            ptr.To(false),
			TerminationGracePeriodSeconds: ptr.To(int64(of.GetGrace().AsDuration().Seconds())),
			NodeSelector:                  hostSelector(vm),
			Affinity:                      affinity(vm.Spec.FailureDomain),
			Tolerations:                   tolerations(),
			Containers: []corev1.Container{{
				Name: ContainerName, Image: Image(vm, s), Command: vmpb.Command(),
				Env: environment(spec, s), Resources: podResources(&vm.Spec, s), VolumeMounts: volumes.mounts, VolumeDevices: volumes.devices,
				SecurityContext: securityContext(),
			}},
			Volumes: volumes.all,
		},
	}, nil
}

// Image returns the container image of a VM's next hypervisor.
func Image(vm *v1alpha1.VirtualMachine, s Settings) string {
	return cmp.Or(vm.Spec.HypervisorImage, s.Image)
}

// ShutdownTime returns how long the guest of a VM may take to shut down.
func ShutdownTime(vm *v1alpha1.VirtualMachine) time.Duration {
	seconds := vm.Spec.TerminationGracePeriodSeconds
	if seconds <= 0 {
		return DefaultShutdownTime
	}
	return min(time.Duration(seconds)*time.Second, maxShutdownTime)
}

// GracePeriod returns how long the hypervisor of a VM may take to shut its guest down and to terminate.
func GracePeriod(vm *v1alpha1.VirtualMachine) time.Duration { return ShutdownTime(vm) + exitTime }

// GracePeriodOf returns how long the hypervisor in a Pod takes at most to shut its guest down and to terminate. It has
// the time that the spec of the VM contained when the Pod was created.
func GracePeriodOf(pod *corev1.Pod) time.Duration {
	spec, err := specOf(pod)
	if err != nil || spec.GetShutdownTime() == nil {
		return DefaultGracePeriod
	}
	return spec.GetShutdownTime().AsDuration() + exitTime
}

// gracePeriod returns how long the hypervisor of a VM may take to terminate after SIGTERM, which includes a migration.
func gracePeriod(vm *v1alpha1.VirtualMachine, s Settings) time.Duration {
	if vm.Spec.MigrateStrategy == v1alpha1.MigrateCold {
		return GracePeriod(vm)
	}
	return max(DefaultGracePeriod, cmp.Or(s.Migration.Time, DefaultMigrationTime)) - DefaultShutdownTime + ShutdownTime(vm)
}

// securityContext drops all privileges that hypervisors do not need. The user is that of the image unless Options set
// one, because the user that can open /dev/kvm and write to volumes differs between hosts.
func securityContext() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: ptr.To(false),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// affinity restricts a hypervisor to the hosts of a failure domain. A host without a zone is its own failure domain.
func affinity(domain string) *corev1.Affinity {
	if domain == "" {
		return nil
	}
	is := func(label string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: label, Operator: corev1.NodeSelectorOpIn, Values: []string{domain}}
	}
	noZone := corev1.NodeSelectorRequirement{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpDoesNotExist}
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{ // one of the terms must match
			{MatchExpressions: []corev1.NodeSelectorRequirement{is(corev1.LabelTopologyZone)}},
			{MatchExpressions: []corev1.NodeSelectorRequirement{is(corev1.LabelHostname), noZone}},
		},
	}}}
}

// tolerations keep a hypervisor on a host that is not ready or unreachable. The hypervisor may still be running
// there, and its disk is usually on that host.
func tolerations() []corev1.Toleration {
	return []corev1.Toleration{
		{Key: v1alpha1.HostKey, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	}
}

func environment(spec string, s Settings) []corev1.EnvVar {
	env := []corev1.EnvVar{
		{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
		// Escape each $ in the spec, so that it does not begin a reference to another variable.
		{Name: vmpb.EnvSpec, Value: strings.ReplaceAll(spec, "$", "$$")},
		{Name: vmpb.EnvAuthority, Value: s.Authority},
		{Name: vmpb.EnvListen, Value: "$(POD_IP):0"},
	}
	if s.Authority == "" {
		env = slices.DeleteFunc(env, func(variable corev1.EnvVar) bool { return variable.Name == vmpb.EnvAuthority })
		env = append(env, s.Certificates.environment()...)
	}
	if s.Accelerator != "" {
		env = append(env, corev1.EnvVar{Name: vmpb.EnvAccelerator, Value: s.Accelerator})
	}
	if len(s.Networks) > 0 {
		var prefixes []string
		for _, network := range s.Networks {
			prefixes = append(prefixes, network.String())
		}
		env = append(env, corev1.EnvVar{Name: vmpb.EnvUserNetwork, Value: strings.Join(prefixes, ",")})
	}
	env = append(env, s.Overlay.environment(len(s.Networks) > 0)...)
	if len(s.HostPorts) > 0 {
		var ports []string
		for _, port := range s.HostPorts {
			ports = append(ports, strconv.Itoa(int(port)))
		}
		env = append(env, corev1.EnvVar{Name: vmpb.EnvHostPorts, Value: strings.Join(ports, ",")})
	}
	if s.Migration.Bandwidth > 0 {
		env = append(env, corev1.EnvVar{Name: vmpb.EnvMigrationBandwidth, Value: strconv.FormatUint(s.Migration.Bandwidth, 10)})
	}
	return env
}

// environment returns the variables for hypervisors whose guests have a network.
func (o Overlay) environment(network bool) []corev1.EnvVar {
	if o.Port == 0 || !network {
		return nil
	}
	env := []corev1.EnvVar{{Name: vmpb.EnvOverlay, Value: "[$(POD_IP)]:" + strconv.Itoa(int(o.Port))}}
	if o.MTU > 0 {
		env = append(env, corev1.EnvVar{Name: vmpb.EnvOverlayMTU, Value: strconv.Itoa(o.MTU)})
	}
	return env
}
