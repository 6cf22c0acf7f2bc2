package security

// Roles, each in its own manifest.
const (
	controlRole = "config/rbac/control-role.yaml"
	targetRole  = "config/rbac/target-role.yaml"
	simRole     = "config/rbac/target-role-sim.yaml"
	approver    = "config/rbac/node-certificates-role.yaml"
	vmRole      = "config/rbac/vm-controller-role.yaml"
	leaderRole  = "config/rbac/vm-leader-role.yaml"
	apiRole     = "config/rbac/vm-subresources-role.yaml"
	consoleRole = "config/rbac/vm-console-role.yaml"
	scalerRole  = "config/rbac/autoscaler-provider-role.yaml"
	scaledRole  = "config/rbac/autoscaler-provider-target-role.yaml"

	capiRole     = "config/rbac/capi-role.yaml"
	capiCoreRole = "config/rbac/capi-core-role.yaml"

	fleetRole       = "config/rbac/fleet-role.yaml"
	fleetTargetRole = "config/rbac/fleet-target-role.yaml"

	balancerRole       = "config/rbac/load-balancer-role.yaml"
	balancerLeaderRole = "config/rbac/load-balancer-leader-role.yaml"

	cloudRole      = "config/rbac/cloud-controller-role.yaml"
	cloudVMsRole   = "config/rbac/cloud-controller-infrastructure-role.yaml"
	cloudHostsRole = "config/rbac/cloud-controller-hosts-role.yaml"

	driverRole        = "config/rbac/driver-vm-role.yaml"
	driverClusterRole = "config/rbac/driver-vm-cluster-role.yaml"
	driverUpdateRole  = "config/rbac/driver-vm-update-role.yaml"
	hostsRole         = "config/rbac/driver-vm-hosts-role.yaml"

	setsRole       = "config/rbac/machine-controller-manager-role.yaml"
	setsTargetRole = "config/rbac/machine-controller-manager-target-role.yaml"
	machinesRole   = "config/rbac/machine-controller-role.yaml"
)

// ofAnyone are the permissions that Kubernetes grants to all authenticated users.
var ofAnyone = []string{
	"selfsubjectaccessreviews.authorization.k8s.io in everywhere: create",
	"selfsubjectreviews.authentication.k8s.io in everywhere: create",
	"selfsubjectrulesreviews.authorization.k8s.io in everywhere: create",
	"/api in everywhere: get",
	"/api/* in everywhere: get",
	"/apis in everywhere: get",
	"/apis/* in everywhere: get",
	"/healthz in everywhere: get",
	"/livez in everywhere: get",
	"/openapi in everywhere: get",
	"/openapi/* in everywhere: get",
	"/readyz in everywhere: get",
	"/version in everywhere: get",
	"/version/ in everywhere: get",
}

// ofNodes are the permissions that Kubernetes' authorizer grants to any node for some names. Its admission
// plug-in limits these to the node itself, and to Pods that are bound to it: see TestNode_CannotAffectOtherNodes.
var ofNodes = []string{
	"pods in everywhere: create delete",
	"pods/eviction in everywhere: create",
	"pods/status in everywhere: update patch",
	"nodes in everywhere: create update patch",
	"nodes/status in everywhere: update patch",
	"events in everywhere: create update patch",
	"events.events.k8s.io in everywhere: create update patch",
	"services in everywhere: get list watch",
	"endpoints in everywhere: get",
	"clustertrustbundles.certificates.k8s.io in everywhere: get list watch",
	"podcertificaterequests.certificates.k8s.io in everywhere: create",
	"csidrivers.storage.k8s.io in everywhere: get list watch",
	"csinodes.storage.k8s.io in everywhere: create",
	"runtimeclasses.node.k8s.io in everywhere: get list watch",
	"resourceslices.resource.k8s.io in everywhere: create",
	"certificatesigningrequests.certificates.k8s.io in everywhere: get list watch create",
	"certificatesigningrequests/selfnodeclient.certificates.k8s.io in everywhere: create", // renewal
	"tokenreviews.authentication.k8s.io in everywhere: create",
	"localsubjectaccessreviews.authorization.k8s.io in everywhere: create",
	"subjectaccessreviews.authorization.k8s.io in everywhere: create",
	"selfsubjectaccessreviews.authorization.k8s.io in everywhere: create",
	"selfsubjectreviews.authentication.k8s.io in everywhere: create",
	"selfsubjectrulesreviews.authorization.k8s.io in everywhere: create",
}

// identities are those of the shipped manifests, and those of guests, hosts and hypervisors. The lists contain everything
// that an identity can do in addition to ofAnyone, so a new permission fails the test until it is added here.
var identities = map[string]identity{
	"the manager in the control cluster": {roles: []string{controlRole}, want: []string{
		"alicloudmachineclasses.machine.sapcloud.io in own: list watch patch",
		"awsmachineclasses.machine.sapcloud.io in own: list watch patch",
		"azuremachineclasses.machine.sapcloud.io in own: list watch patch",
		"events in own: create patch",
		"gcpmachineclasses.machine.sapcloud.io in own: list watch patch",
		"leases.coordination.k8s.io in own: create",
		"leases.coordination.k8s.io machine-controller in own: get update",
		"leases.coordination.k8s.io machine-controller-manager in own: get update",
		"machineclasses.machine.sapcloud.io in own: list watch create patch",
		"machinedeployments.machine.sapcloud.io in own: get list watch patch",
		"machinedeployments/finalizers.machine.sapcloud.io in own: update",
		"machinedeployments/status.machine.sapcloud.io in own: patch",
		"machines.machine.sapcloud.io in own: get list watch create patch delete",
		"machines/status.machine.sapcloud.io in own: patch",
		"machinesets.machine.sapcloud.io in own: get list watch create patch delete",
		"machinesets/finalizers.machine.sapcloud.io in own: update",
		"machinesets/status.machine.sapcloud.io in own: patch",
		"openstackmachineclasses.machine.sapcloud.io in own: list watch patch",
		"packetmachineclasses.machine.sapcloud.io in own: list watch patch",
		"secrets in own: list watch patch",
	}},
	"the manager in the target cluster": {roles: []string{targetRole}, want: []string{
		"bootstraptokens.machine.millwright.dev in kube-system: create",
		"events in everywhere: create patch",
		"nodes in everywhere: get list watch patch delete",
		"nodes/status in everywhere: patch",
		"persistentvolumeclaims in everywhere: list watch",
		"persistentvolumes in everywhere: list watch",
		"poddisruptionbudgets.policy in everywhere: list watch",
		"pods in everywhere: list watch delete",
		"pods/eviction in everywhere: create",
		"secrets in kube-system: get create delete",
		"volumeattachments.storage.k8s.io in everywhere: list watch delete",
	}},
	"machine-controller-manager in the control cluster": {roles: []string{setsRole}, want: []string{
		"events in own: create patch",
		"leases.coordination.k8s.io in own: create",
		"leases.coordination.k8s.io machine-controller-manager in own: get update",
		"machineclasses.machine.sapcloud.io in own: list watch",
		"machinedeployments.machine.sapcloud.io in own: get list watch patch",
		"machinedeployments/finalizers.machine.sapcloud.io in own: update",
		"machinedeployments/status.machine.sapcloud.io in own: patch",
		"machines.machine.sapcloud.io in own: get list watch create patch delete",
		"machinesets.machine.sapcloud.io in own: get list watch create patch delete",
		"machinesets/finalizers.machine.sapcloud.io in own: update",
		"machinesets/status.machine.sapcloud.io in own: patch",
	}},
	"machine-controller-manager in the target cluster": {roles: []string{setsTargetRole}, want: []string{
		"nodes in everywhere: list watch patch",
	}},
	"machine-controller in the control cluster": {roles: []string{machinesRole}, want: []string{
		"alicloudmachineclasses.machine.sapcloud.io in own: list watch patch",
		"awsmachineclasses.machine.sapcloud.io in own: list watch patch",
		"azuremachineclasses.machine.sapcloud.io in own: list watch patch",
		"events in own: create patch",
		"gcpmachineclasses.machine.sapcloud.io in own: list watch patch",
		"leases.coordination.k8s.io in own: create",
		"leases.coordination.k8s.io machine-controller in own: get update",
		"machineclasses.machine.sapcloud.io in own: list watch create patch",
		"machinedeployments.machine.sapcloud.io in own: list watch patch",
		"machines.machine.sapcloud.io in own: get list watch patch delete",
		"machines/status.machine.sapcloud.io in own: patch",
		"machinesets.machine.sapcloud.io in own: list watch patch",
		"openstackmachineclasses.machine.sapcloud.io in own: list watch patch",
		"packetmachineclasses.machine.sapcloud.io in own: list watch patch",
		"secrets in own: list watch patch",
	}},
	"the manager that approves nodes": {roles: []string{approver}, want: []string{
		"certificatesigningrequests.certificates.k8s.io in everywhere: list watch",
		"certificatesigningrequests/approval.certificates.k8s.io in everywhere: update",
		"signers.certificates.k8s.io kubernetes.io/kube-apiserver-client-kubelet in everywhere: approve",
	}},
	"the manager for Cluster API": {roles: []string{capiRole}, want: []string{
		"clusters.cluster.x-k8s.io in everywhere: list watch",
		"events in everywhere: create patch",
		"leases.coordination.k8s.io in own: create",
		"leases.coordination.k8s.io millwright-cluster-api in own: get update",
		"machineclasses.machine.sapcloud.io in everywhere: list watch patch",
		"machines.cluster.x-k8s.io in everywhere: list watch",
		"millwrightclusters.infrastructure.millwright.dev in everywhere: list watch patch",
		"millwrightclusters/status.infrastructure.millwright.dev in everywhere: patch",
		"millwrightmachines.infrastructure.millwright.dev in everywhere: get list watch patch",
		"millwrightmachines/status.infrastructure.millwright.dev in everywhere: patch",
		"millwrightmachinetemplates.infrastructure.millwright.dev in everywhere: list watch",
		"millwrightmachinetemplates/status.infrastructure.millwright.dev in everywhere: patch",
		"secretfinalizers.infrastructure.millwright.dev in everywhere: update",
		"secrets in everywhere: get patch",
	}},
	"the driver vm": {roles: []string{driverRole}, want: []string{
		"secrets in own: get create update delete",
		"virtualmachines.vm.metropolis.monogon.dev in own: get list watch create delete",
	}},
	"the driver vm, to recognize its cluster": {roles: []string{driverClusterRole}, want: []string{
		"namespaces kube-system in everywhere: get",
	}},
	"the driver vm for live updates": {roles: []string{driverUpdateRole}, want: []string{
		"virtualmachines.vm.metropolis.monogon.dev in own: patch",
	}},
	"the driver vm for failure domains": {roles: []string{hostsRole}, want: []string{
		"nodes in everywhere: list",
	}},
	"the VM controller": {roles: []string{vmRole}, want: []string{
		"events in everywhere: create patch",
		"globalinclusterippools.ipam.cluster.x-k8s.io in everywhere: get",
		"inclusterippools.ipam.cluster.x-k8s.io in everywhere: get",
		"ipaddressclaims.ipam.cluster.x-k8s.io in everywhere: get list watch create",
		"ipaddresses.ipam.cluster.x-k8s.io in everywhere: get",
		"persistentvolumeclaims in everywhere: get list watch create patch delete",
		"pods in everywhere: get list watch create patch delete",
		"secrets in everywhere: get",
		"secrets in own: create",
		"secrets millwright-vm-authority in own: get update",
		"storageclasses.storage.k8s.io in everywhere: get",
		"tokenreviews.authentication.k8s.io in everywhere: create",
		"virtualmachines.vm.metropolis.monogon.dev in everywhere: get list watch patch",
		"virtualmachines/finalizers.vm.metropolis.monogon.dev in everywhere: update",
		"virtualmachines/hypervisors.vm.metropolis.monogon.dev in everywhere: create",
		"virtualmachines/status.vm.metropolis.monogon.dev in everywhere: patch",
	}},
	"the VM controller that leads": {roles: []string{leaderRole}, want: []string{
		"endpointslices.discovery.k8s.io millwright-vm-controller in own: watch create patch",
		"leases.coordination.k8s.io in own: create",
		"leases.coordination.k8s.io millwright-vm-controller in own: get update",
		"services millwright-vm-controller in own: get",
	}},
	"the VM controller, for its consoles": {roles: []string{apiRole}, want: []string{
		"apiservices.apiregistration.k8s.io v1alpha1.subresources.vm.metropolis.monogon.dev in everywhere: get create patch",
		"subjectaccessreviews.authorization.k8s.io in everywhere: create",
	}},
	"users of virtual machines, all together": {roles: []string{consoleRole}, want: []string{
		"virtualmachines.vm.metropolis.monogon.dev in everywhere: get list",
		"virtualmachines/console.subresources.vm.metropolis.monogon.dev in everywhere: get",
		"virtualmachines/log.subresources.vm.metropolis.monogon.dev in everywhere: get",
		"virtualmachines/migrate.subresources.vm.metropolis.monogon.dev in everywhere: create delete",
		"virtualmachines/pause.subresources.vm.metropolis.monogon.dev in everywhere: create delete",
		"virtualmachines/portforward.subresources.vm.metropolis.monogon.dev in everywhere: get",
		"virtualmachines/reset.subresources.vm.metropolis.monogon.dev in everywhere: create",
		"virtualmachines/screenshot.subresources.vm.metropolis.monogon.dev in everywhere: get",
		"virtualmachines/vnc.subresources.vm.metropolis.monogon.dev in everywhere: get",
	}},
	"the autoscaler's provider in the control cluster": {roles: []string{scalerRole}, want: []string{
		"machineclasses.machine.sapcloud.io in own: list watch",
		"machinedeployments.machine.sapcloud.io in own: get list watch patch",
		"machines.machine.sapcloud.io in own: list watch",
		"machinesets.machine.sapcloud.io in own: list watch",
	}},
	"the autoscaler's provider in the target cluster": {roles: []string{scaledRole}, want: []string{
		"nodes in everywhere: list watch",
	}},
	"the simulated driver in the target cluster": {roles: []string{simRole}, want: []string{
		"leases.coordination.k8s.io in kube-node-lease: create patch",
		"nodes in everywhere: create",
		"nodes/status in everywhere: patch",
	}},
	"a fleet": {roles: []string{fleetRole}, want: []string{
		"alicloudmachineclasses.machine.sapcloud.io in everywhere: list watch patch",
		"awsmachineclasses.machine.sapcloud.io in everywhere: list watch patch",
		"azuremachineclasses.machine.sapcloud.io in everywhere: list watch patch",
		"events in everywhere: create patch",
		"gcpmachineclasses.machine.sapcloud.io in everywhere: list watch patch",
		"leases.coordination.k8s.io in everywhere: create",
		"leases.coordination.k8s.io in own: get list update delete",
		"leases.coordination.k8s.io machine-controller in everywhere: get update",
		"leases.coordination.k8s.io machine-controller-manager in everywhere: get update",
		"machineclasses.machine.sapcloud.io in everywhere: list watch create patch",
		"machinedeployments.machine.sapcloud.io in everywhere: get list watch patch",
		"machinedeployments/finalizers.machine.sapcloud.io in everywhere: update",
		"machinedeployments/status.machine.sapcloud.io in everywhere: patch",
		"machines.machine.sapcloud.io in everywhere: get list watch create patch delete",
		"machines/status.machine.sapcloud.io in everywhere: patch",
		"machinesets.machine.sapcloud.io in everywhere: get list watch create patch delete",
		"machinesets/finalizers.machine.sapcloud.io in everywhere: update",
		"machinesets/status.machine.sapcloud.io in everywhere: patch",
		"namespaces in everywhere: get list watch",
		"openstackmachineclasses.machine.sapcloud.io in everywhere: list watch patch",
		"packetmachineclasses.machine.sapcloud.io in everywhere: list watch patch",
		"secrets in everywhere: list watch patch",
	}},
	"a fleet in a target": {roles: []string{fleetTargetRole}, want: []string{
		"namespaces kube-system in everywhere: get",
	}},
	"the load balancer": {roles: []string{balancerRole}, want: []string{
		"clusters.cluster.x-k8s.io in everywhere: list watch",
		"events in everywhere: create patch",
		"millwrightclusters.infrastructure.millwright.dev in everywhere: list watch patch",
		"millwrightclusters/status.infrastructure.millwright.dev in everywhere: patch",
		"millwrightmachines.infrastructure.millwright.dev in everywhere: list watch",
	}},
	"the load balancer that leads": {roles: []string{balancerLeaderRole}, want: []string{
		"leases.coordination.k8s.io in own: create",
		"leases.coordination.k8s.io millwright-load-balancer in own: get update",
	}},
	"the cloud controller in its cluster": {roles: []string{cloudRole}, want: []string{
		"events in everywhere: create patch",
		"leases.coordination.k8s.io in own: create",
		"leases.coordination.k8s.io millwright-cloud-controller in own: get update",
		"nodes in everywhere: get list watch update patch delete",
		"nodes/status in everywhere: patch",
		"services in everywhere: list watch",
		"services/status in everywhere: patch",
	}},
	"the cloud controller in the infrastructure cluster": {roles: []string{cloudVMsRole}, want: []string{
		"namespaces in own: get",
		"services in own: get list watch create update delete",
		"virtualmachines.vm.metropolis.monogon.dev in own: get list watch",
	}},
	"the cloud controller, for zones": {roles: []string{cloudHostsRole}, want: []string{
		"nodes in everywhere: get",
	}},
	"the core of Cluster API": {roles: []string{capiCoreRole}, want: []string{
		"millwrightclusters.infrastructure.millwright.dev in everywhere: get list watch create update patch delete",
		"millwrightclustertemplates.infrastructure.millwright.dev in everywhere: get list watch create update patch delete",
		"millwrightmachines.infrastructure.millwright.dev in everywhere: get list watch create update patch delete",
		"millwrightmachinetemplates.infrastructure.millwright.dev in everywhere: get list watch create update patch delete",
	}},
	"a hypervisor": {
		user: "system:serviceaccount:NAMESPACE:default", groups: []string{"system:serviceaccounts", "system:serviceaccounts:NAMESPACE"},
		want: []string{ // as any ServiceAccount
			"/.well-known/openid-configuration in everywhere: get",
			"/.well-known/openid-configuration/ in everywhere: get",
			"/openid/v1/jwks in everywhere: get",
			"/openid/v1/jwks/ in everywhere: get",
			"clustertrustbundles.certificates.k8s.io in everywhere: get list watch",
		},
	},
	"a guest with its bootstrap token": {
		user: "system:bootstrap:abcdef", groups: []string{"system:bootstrappers"},
		want: []string{"certificatesigningrequests.certificates.k8s.io in everywhere: get list watch create"},
	},
	"a guest that has joined": {user: "system:node:guest-of-NAMESPACE", groups: []string{"system:nodes"}, want: ofNodes},
	"a host": {
		user: "system:node:host-of-NAMESPACE", groups: []string{"system:nodes", "millwright:hosts"},
		want: append(append([]string{}, ofNodes...),
			"virtualmachines.vm.metropolis.monogon.dev in everywhere: get",
			"hosts.vm.metropolis.monogon.dev in everywhere: create"),
	},
}
