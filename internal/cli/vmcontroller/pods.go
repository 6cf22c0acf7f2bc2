package vmcontroller

import (
	"path"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/manager"
)

// hypervisorUser is the user of this project's hypervisor image.
const hypervisorUser = 65532

// pods are the flags for the Pods of hypervisors.
type pods struct {
	user        int64
	groups      []int
	kvmResource string
	kvmDevice   string
	priority    string
	pullSecrets []string
}

func (p *pods) add(set *pflag.FlagSet) {
	set.Int64Var(&p.user, "hypervisor-user", hypervisorUser, `user and group ID of hypervisors, which then have a read-only root file system and fulfill Pod Security "restricted"; 0 for the user of their image`)
	set.IntSliceVar(&p.groups, "hypervisor-groups", nil, "comma-separated IDs of supplementary groups of hypervisors, such as that of /dev/kvm")
	set.StringVar(&p.kvmResource, "kvm-resource", "", "device plugin resource that provides /dev/kvm to hypervisors, such as devices.kubevirt.io/kvm")
	set.StringVar(&p.kvmDevice, "kvm-host-path", "", "path of the KVM device on hosts without a device plugin, such as /dev/kvm; gives hypervisors, and so their images, root access to the hosts: prefer --kvm-resource")
	set.StringVar(&p.priority, "hypervisor-priority-class", "", "PriorityClass of the Pods of hypervisors; defaults to the cluster's default")
	set.StringSliceVar(&p.pullSecrets, "hypervisor-pull-secrets", nil, "comma-separated image pull Secrets, in the namespaces of the virtual machines, for the image of hypervisors")
}

// validate adds all problems with the flags.
func (p *pods) validate(wrong *args.Problems, accelerator string) {
	wrong.If(p.user < 0, "--hypervisor-user: must not be negative")
	for _, group := range p.groups {
		wrong.If(group < 0, "--hypervisor-groups: %d is not a group ID; must not be negative", group)
	}
	wrong.If(p.kvmResource != "" && len(utilvalidation.IsQualifiedName(p.kvmResource)) > 0, "--kvm-resource: %q is not a valid resource name; expected a name such as devices.kubevirt.io/kvm", p.kvmResource)
	wrong.If(p.kvmDevice != "" && (!path.IsAbs(p.kvmDevice) || path.Clean(p.kvmDevice) != p.kvmDevice), "--kvm-host-path: %q is not an absolute, clean path; expected a path such as /dev/kvm", p.kvmDevice)
	wrong.If(p.kvmResource != "" && p.kvmDevice != "", "--kvm-host-path: cannot be used with --kvm-resource")
	for flag, value := range map[string]string{"kvm-resource": p.kvmResource, "kvm-host-path": p.kvmDevice} {
		wrong.If(value != "" && accelerator == "tcg", "--%s: requires --accelerator=auto or kvm", flag)
	}
	for flag, names := range map[string][]string{"hypervisor-priority-class": {p.priority}, "hypervisor-pull-secrets": p.pullSecrets} {
		for _, name := range names {
			wrong.If(name != "" && len(utilvalidation.IsDNS1123Subdomain(name)) > 0, "--%s: %q is not a valid name", flag, name)
		}
	}
}

// options returns the options from the flags.
func (p *pods) options() manager.VMPods {
	options := manager.VMPods{
		User: p.user, KVMResource: corev1.ResourceName(p.kvmResource), KVMDevice: p.kvmDevice,
		PriorityClass: p.priority, PullSecrets: p.pullSecrets,
	}
	for _, group := range p.groups {
		options.Groups = append(options.Groups, int64(group))
	}
	return options
}
