package vmpb

// The following constants describe the container of a hypervisor process. They are the contract between the VM
// controller, which creates the Pod, the kubelet or host runner, and the process.
const (
	// EnvSpec is the environment variable with the VMSpec, as protobuf JSON, or in binary form encoded in base64.
	EnvSpec = "METROPOLIS_VM_SPEC"
	// EnvAuthority is the environment variable with the certificate authorities of
	// controller and hypervisors, in PEM form.
	EnvAuthority = "MILLWRIGHT_VM_AUTHORITY"
	// EnvCertFile, EnvKeyFile and EnvAuthorityFile are the environment variables with paths of files in PEM form:
	// a certificate of this hypervisor from another issuer, with its chain; its key; and the trusted authorities.
	// Either all or none of them must be set. If they are set, neither EnvAuthority nor the token is used. The files
	// may be replaced while the process runs.
	EnvCertFile      = "MILLWRIGHT_VM_CERT_FILE"
	EnvKeyFile       = "MILLWRIGHT_VM_KEY_FILE"
	EnvAuthorityFile = "MILLWRIGHT_VM_AUTHORITY_FILE"
	// EnvListen is the environment variable with the address on which the process serves gRPC over the network,
	// host:port. Port 0 means any free port. If empty, the address is [::]:0.
	EnvListen = "MILLWRIGHT_VM_LISTEN"
	// EnvDisksControl is the environment variable of a disk server with the address on which it serves
	// millwright.storage.DiskServer to the VM controller, host:port. Port 0 means any free port, which the server
	// reports. If empty, the address is [::]:DisksControlPort.
	EnvDisksControl = "MILLWRIGHT_VM_DISKS_CONTROL"
	// EnvDisksSessions is the environment variable of a disk server with the address on which hypervisors attach the
	// disks, in the form of EnvDisksControl. Hypervisors must be able to reach the host, because the server returns
	// it in the response to Open. An unspecified host is therefore replaced by that of EnvDisksControl, if that is
	// specified. If empty, the address is [::]:DisksSessionsPort.
	EnvDisksSessions = "MILLWRIGHT_VM_DISKS_SESSIONS"
	// EnvAccelerator is the environment variable with QEMU's accelerator: auto, kvm or tcg. If empty, it is auto.
	EnvAccelerator = "MILLWRIGHT_VM_ACCELERATOR"
	// TranslatedCodeMiB is the maximum size of QEMU's cache of translated guest code, in MiB. QEMU uses the cache if it
	// emulates the processor. The Pod of a hypervisor that may emulate requires this memory in addition to the guest's
	// memory. When the cache is full, QEMU empties it.
	TranslatedCodeMiB = 128
	// EnvUserNetwork is the environment variable with the prefixes of the guests' user-mode network, at most one of
	// each IP version, separated by a comma. They contain all addresses of VMs. The second address of each prefix is
	// the gateway, at which guests reach the ports in EnvHostPorts of the host's loopback interface. If empty, there
	// is no network.
	EnvUserNetwork = "MILLWRIGHT_VM_USER_NETWORK"
	// EnvHostPorts is the environment variable with the TCP ports of the host's loopback interface that guests may
	// connect to, at the gateway's address, separated by commas. If empty, guests may not connect to any port.
	EnvHostPorts = "MILLWRIGHT_VM_HOST_PORTS"
	// EnvMigrationBandwidth is the environment variable with the maximum rate, in bytes per second, at which the
	// process sends memory, and at which it sends the disk, when the VM migrates to another host. The
	// controller can set another limit with the target. If empty, QEMU's default limits the memory, and the disk is not
	// limited.
	EnvMigrationBandwidth = "MILLWRIGHT_VM_MIGRATION_BANDWIDTH"
	// EnvImages is the environment variable with the directory below which file URLs of images and boot files may
	// name files. The operator of the host sets it, never the author of a VM. If empty, file URLs are not allowed.
	EnvImages = "MILLWRIGHT_VM_IMAGES"
	// EnvImageServers is the environment variable with addresses of the host itself from which images and boot files
	// may be downloaded: IP:PORT, or IP for all its ports, separated by commas. The operator of the host sets it. If
	// empty, servers with a loopback or link-local address are not allowed.
	EnvImageServers = "MILLWRIGHT_VM_IMAGE_SERVERS"
	// EnvSwitch is the environment variable with the path of the socket of the host's switch, through which guests
	// reach each other. The path is not below EnvRoot. The operator of the host sets it. If empty, guests cannot reach
	// other guests.
	EnvSwitch = "MILLWRIGHT_VM_SWITCH"
	// EnvOverlay is the environment variable with the IP address and UDP port, IP:PORT, at which other hypervisors
	// reach this one, to carry packets between their guests. The IP address may be in brackets. If empty, guests on
	// different hosts cannot reach each other.
	EnvOverlay = "MILLWRIGHT_VM_OVERLAY"
	// EnvOverlayMTU is the environment variable with the length of the longest packet between guests, in bytes. If
	// empty, it is derived from the network interface with the address in EnvOverlay.
	EnvOverlayMTU = "MILLWRIGHT_VM_OVERLAY_MTU"
	// EnvPorts is the environment variable with the TCP ports of the guest to which clients of the Pod may connect,
	// separated by commas. The process listens on the same ports of all addresses. If empty, nothing can connect to the
	// guest.
	EnvPorts = "MILLWRIGHT_VM_PORTS"
	// EnvUDPPorts is the environment variable with the UDP ports of the guest to which clients of the Pod may send
	// datagrams, in the form of EnvPorts. Older processes ignore it.
	EnvUDPPorts = "MILLWRIGHT_VM_UDP_PORTS"
	// EnvProbe is the environment variable with the URL that determines whether the guest is ready, which the process
	// reports: tcp://:PORT, http://:PORT/PATH or https://:PORT/PATH. Required with EnvPorts and EnvUDPPorts.
	EnvProbe = "MILLWRIGHT_VM_PROBE"
	// EnvOutside is the environment variable that specifies whether guests can reach addresses outside of their
	// network, including the host's name server. With OutsideRefused, they cannot. If empty, they can. The operator of
	// the host sets it.
	EnvOutside = "MILLWRIGHT_VM_OUTSIDE"
	// OutsideRefused is a value of EnvOutside.
	OutsideRefused = "refused"
	// EnvRoot is the environment variable with a prefix for all paths of the container, for a process that does not
	// have its own file system. Name and meaning are those of Windows HostProcess containers.
	EnvRoot = "CONTAINER_SANDBOX_MOUNT_POINT"

	// DirRun is the directory for files that exist as long as the Pod.
	DirRun = "/run/millwright"
	// SocketPath is the Unix socket, with mode 0600, on which the process serves OOBManagement and grpc.health.v1.
	SocketPath = DirRun + "/vm.sock"
	// RootDiskPath is the path of the root disk if it is a file on its volume.
	RootDiskPath = "/var/lib/millwright/disk.img"
	// RootDevicePath is the path of the root disk if it is a block device.
	RootDevicePath = devicesPath + "/root"
	// DataDisksPath is the directory that contains a directory for each data disk, with the name of the disk.
	DataDisksPath = "/var/lib/millwright-data"
	// UserDataPath is the path of the file with the guest's configuration.
	UserDataPath = "/etc/millwright/user-data"
	// TokenPath is the path of the file with the Pod's token for TokenAudience. The file changes before the token
	// expires.
	TokenPath = "/var/run/secrets/millwright/token"
	// IdentityPath is the directory at which the VM controller mounts a volume of a CSI driver that issues
	// certificates. The next three constants are files in it, with the names that cert-manager uses.
	IdentityPath          = "/var/run/secrets/millwright-identity"
	IdentityCertFile      = IdentityPath + "/tls.crt"
	IdentityKeyFile       = IdentityPath + "/tls.key"
	IdentityAuthorityFile = IdentityPath + "/ca.crt"
	// TokenAudience is the audience of the token at TokenPath.
	TokenAudience = "vm.metropolis.monogon.dev"
	// TerminationMessagePath is the path of the file for the Termination, as JSON.
	TerminationMessagePath = "/dev/termination-log"
)

// devicesPath is the directory with the device files of block devices.
const devicesPath = "/dev/millwright"

// DataDiskPath returns the path of a data disk that is a file on its volume.
func DataDiskPath(name string) string { return DataDisksPath + "/" + name + "/disk.img" }

// DataDevicePath returns the path of a data disk that is a block device.
func DataDevicePath(name string) string { return devicesPath + "/data-" + name }

// Command returns the command of the container.
func Command() []string { return []string{"millwright", "hypervisor"} }

// The following constants are the ports of a disk server in a Pod that has its own address. If Pods share the address
// of their host, both environment variables have port 0.
const (
	// DisksControlPort is the port at which the VM controller opens and revokes tokens.
	DisksControlPort = 8460
	// DisksSessionsPort is the port at which hypervisors attach the disks.
	DisksSessionsPort = 8461
)

// OverlayPort is the UDP port of EnvOverlay in a Pod that has its own address.
const OverlayPort = 8462

// DiskServerCommand returns the command of the container that serves the disks of a VM with VMSpec.disks_served.
//
// Its environment is that of a hypervisor, except that it has EnvDisksControl and EnvDisksSessions instead of
// EnvListen. The VMSpec has the mode SM_RUN or SM_PREPARE_IMAGE, the paths, sizes and images of the disks, the name of
// the server's own Pod as pod_name, and disks_served false. The server ignores what it does not need: the lease, the
// addresses and the kernel. Its certificate, run directory, termination message and signals are those of a hypervisor.
// It has neither a socket nor a guest. It supports only disks in files, and rejects a path below /dev with
// EndInvalidSpec.
//
// The server calls VMController.ReportState for the HypervisorID of its own Pod, and never calls RunLease. It reports
// STATE_PREPARING and STATE_WAITING like a hypervisor. Once it serves, it reports STATE_RUNNING, image_prepared, the
// disks with their sizes, and as endpoint the address for calls of DiskServer. It does not listen before that. It
// repeats the report whenever it has another connection to a controller. It exits only after SIGTERM, with EndStopped,
// or because of an error.
func DiskServerCommand() []string { return []string{"millwright", "disk-server"} }

// Termination is the reason why a hypervisor process exited. It is the termination message of its container.
type Termination struct {
	// Reason is one of the constants below, or a constant of a later version.
	Reason string `json:"reason"`
	// Message explains the reason to users.
	Message string `json:"message"`
}

// The following constants are the reasons of a Termination. The exit code is 0 for the first three, and 1 for the
// others.
const (
	// EndGuestShutdown means that the guest powered itself off.
	EndGuestShutdown = "GuestShutdown"
	// EndTerminated means that the controller sent STATUS_TERMINATE.
	EndTerminated = "Terminated"
	// EndStopped means that the process, and the guest with it, was asked to terminate (SIGTERM).
	EndStopped = "Stopped"
	// EndInvalidSpec means that the VMSpec, or another part of the environment, is invalid.
	EndInvalidSpec = "InvalidSpec"
	// EndImageUnavailable means that an image or boot file currently cannot be downloaded.
	EndImageUnavailable = "ImageUnavailable"
	// EndImageRejected means that an image or boot file cannot be used, because of its checksum, format or size.
	EndImageRejected = "ImageRejected"
	// EndNoSpace means that there is not enough free space for the disk.
	EndNoSpace = "NoSpace"
	// EndDiskLost means that the disk does not exist, although the VM has had one.
	EndDiskLost = "DiskLost"
	// EndDiskLocked means that another process holds the lock of the disk.
	EndDiskLocked = "DiskLocked"
	// EndNoQEMU means that QEMU, or the UEFI firmware of a VM that boots with UEFI, is not installed.
	EndNoQEMU = "NoQEMU"
	// EndNetworkUnavailable means that the Pod lacks a network interface of VMSpec.networks, or that this process may not
	// use it.
	EndNetworkUnavailable = "NetworkUnavailable"
	// EndQEMUFailed means that QEMU did not start, or exited unexpectedly.
	EndQEMUFailed = "QEMUFailed"
	// EndNotAuthorized means that the controller did not authorize this process, or that the process does not have the
	// certificate that it needs for an authorization.
	EndNotAuthorized = "NotAuthorized"
	// EndNotArrived means that the target of a migration did not get the VM, or did not get the authority. Its guest
	// has never run.
	EndNotArrived = "NotArrived"
	// EndLeaseExpired means that the lease was not renewed in time, so another hypervisor may run the VM.
	EndLeaseExpired = "LeaseExpired"
	// EndInternal means any other reason.
	EndInternal = "Internal"
)
