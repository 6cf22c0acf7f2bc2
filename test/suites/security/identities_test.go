package security

// Roles, each in its own manifest.
const (
	controlRole = "config/rbac/control-role.yaml"
	targetRole  = "config/rbac/target-role.yaml"
	approver    = "config/rbac/node-certificates-role.yaml"
	capiRole    = "config/rbac/capi-role.yaml"
	driverRole  = "config/rbac/driver-vm-role.yaml"
	hostsRole   = "config/rbac/driver-vm-hosts-role.yaml"
	vmRole      = "config/rbac/vm-controller-role.yaml"
	leaderRole  = "config/rbac/vm-leader-role.yaml"
	apiRole     = "config/rbac/vm-subresources-role.yaml"
	consoleRole = "config/rbac/vm-console-role.yaml"
	scalerRole  = "config/rbac/autoscaler-provider-role.yaml"
	scaledRole  = "config/rbac/autoscaler-provider-target-role.yaml"

	setsRole       = "config/rbac/machine-controller-manager-role.yaml"
	setsTargetRole = "config/rbac/machine-controller-manager-target-role.yaml"
	machinesRole   = "config/rbac/machine-controller-role.yaml"
)

// ofNodes are the permissions that Kubernetes' authorizer grants to any node for some names. Its admission
// plug-in limits these to the node itself, and to Pods that are bound to it: see TestNode_CannotAffectOtherNodes.
var ofNodes = []string{
	"pods in everywhere: create delete",
	"pods/eviction in everywhere: create",
	"nodes in everywhere: create update patch",
	"nodes/status in everywhere: update patch",
	"events in everywhere: create update patch",
	"services in everywhere: get list",
	"certificatesigningrequests.certificates.k8s.io in everywhere: get list create",
	"tokenreviews.authentication.k8s.io in everywhere: create",
	"subjectaccessreviews.authorization.k8s.io in everywhere: create",
}

// identities are those of the shipped manifests, and those of guests, hosts and hypervisors.
var identities = map[string]identity{
	"the manager in the control cluster": {roles: []string{controlRole}, want: []string{
		"secrets in own: list patch",
		"events in own: create patch",
		"leases.coordination.k8s.io in own: create",
		"machines.machine.sapcloud.io in own: get list create patch delete",
		"machines/status.machine.sapcloud.io in own: patch",
		"machinesets.machine.sapcloud.io in own: get list create patch delete",
		"machinedeployments.machine.sapcloud.io in own: get list patch",
		"machineclasses.machine.sapcloud.io in own: list create patch",
	}},
	"the manager in the target cluster": {roles: []string{targetRole}, want: []string{
		"secrets in kube-system: get create delete",
		"pods in everywhere: list delete",
		"pods/eviction in everywhere: create",
		"nodes in everywhere: get list patch delete",
		"nodes/status in everywhere: patch",
		"persistentvolumes in everywhere: list",
		"persistentvolumeclaims in everywhere: list",
		"events in everywhere: create patch",
		"volumeattachments.storage.k8s.io in everywhere: list delete",
	}},
	"machine-controller-manager in the control cluster": {roles: []string{setsRole}, want: []string{
		"events in own: create patch",
		"leases.coordination.k8s.io in own: create",
		"machines.machine.sapcloud.io in own: get list create patch delete",
		"machinesets.machine.sapcloud.io in own: get list create patch delete",
		"machinedeployments.machine.sapcloud.io in own: get list patch",
		"machineclasses.machine.sapcloud.io in own: list",
	}},
	"machine-controller-manager in the target cluster": {roles: []string{setsTargetRole}, want: []string{
		"nodes in everywhere: list patch",
	}},
	"machine-controller in the control cluster": {roles: []string{machinesRole}, want: []string{
		"secrets in own: list patch",
		"events in own: create patch",
		"leases.coordination.k8s.io in own: create",
		"machines.machine.sapcloud.io in own: get list patch delete",
		"machines/status.machine.sapcloud.io in own: patch",
		"machinesets.machine.sapcloud.io in own: list patch",
		"machinedeployments.machine.sapcloud.io in own: list patch",
		"machineclasses.machine.sapcloud.io in own: list create patch",
	}},
	"the manager that approves nodes": {roles: []string{approver}, want: []string{
		"certificatesigningrequests.certificates.k8s.io in everywhere: list",
		"certificatesigningrequests/approval.certificates.k8s.io in everywhere: update",
	}},
	"the manager for Cluster API": {roles: []string{capiRole}, want: []string{
		"secrets in everywhere: get patch",
		"events in everywhere: create patch",
		"leases.coordination.k8s.io in own: create",
		"machineclasses.machine.sapcloud.io in everywhere: list patch",
		"millwrightmachines.infrastructure.millwright.dev in everywhere: get list patch",
		"millwrightmachines/status.infrastructure.millwright.dev in everywhere: patch",
	}},
	"the driver vm": {roles: []string{driverRole}, want: []string{
		"secrets in own: get create update delete",
		"virtualmachines.vm.metropolis.monogon.dev in own: get list create delete",
	}},
	"the driver vm for failure domains": {roles: []string{hostsRole}, want: []string{
		"nodes in everywhere: list",
	}},
	"the VM controller": {roles: []string{vmRole}, want: []string{
		"secrets in everywhere: get",
		"pods in everywhere: get list create delete",
		"persistentvolumeclaims in everywhere: get list create patch delete",
		"events in everywhere: create patch",
		"tokenreviews.authentication.k8s.io in everywhere: create",
		"virtualmachines.vm.metropolis.monogon.dev in everywhere: get list patch",
		"virtualmachines/status.vm.metropolis.monogon.dev in everywhere: patch",
		"virtualmachines/hypervisors.vm.metropolis.monogon.dev in everywhere: create",
	}},
	// Its Service, EndpointSlice and APIService are restricted by name.
	"the VM controller that leads":        {roles: []string{leaderRole}, want: []string{"leases.coordination.k8s.io in own: create"}},
	"the VM controller, for its consoles": {roles: []string{apiRole}, want: []string{"subjectaccessreviews.authorization.k8s.io in everywhere: create"}},
	"users of virtual machines, all together": {roles: []string{consoleRole}, want: []string{
		"virtualmachines.vm.metropolis.monogon.dev in everywhere: get list",
		"virtualmachines/console.subresources.vm.metropolis.monogon.dev in everywhere: get",
		"virtualmachines/log.subresources.vm.metropolis.monogon.dev in everywhere: get",
		"virtualmachines/reset.subresources.vm.metropolis.monogon.dev in everywhere: create",
		"virtualmachines/migrate.subresources.vm.metropolis.monogon.dev in everywhere: create delete",
	}},
	"the autoscaler's provider in the control cluster": {roles: []string{scalerRole}, want: []string{
		"machines.machine.sapcloud.io in own: list",
		"machinesets.machine.sapcloud.io in own: list",
		"machinedeployments.machine.sapcloud.io in own: get list patch",
		"machineclasses.machine.sapcloud.io in own: list",
	}},
	"the autoscaler's provider in the target cluster": {roles: []string{scaledRole}, want: []string{
		"nodes in everywhere: list",
	}},
	"a hypervisor": {
		user: "system:serviceaccount:NAMESPACE:default", groups: []string{"system:serviceaccounts", "system:serviceaccounts:NAMESPACE"},
	},
	"a guest with its bootstrap token": {
		user: "system:bootstrap:abcdef", groups: []string{"system:bootstrappers"},
		want: []string{"certificatesigningrequests.certificates.k8s.io in everywhere: get list create"},
	},
	"a guest that has joined": {user: "system:node:guest-of-NAMESPACE", groups: []string{"system:nodes"}, want: ofNodes},
	"a host": {
		user: "system:node:host-of-NAMESPACE", groups: []string{"system:nodes", "millwright:hosts"},
		want: append(append([]string{}, ofNodes...),
			"virtualmachines.vm.metropolis.monogon.dev in everywhere: get",
			"hosts.vm.metropolis.monogon.dev in everywhere: create"),
	},
}
