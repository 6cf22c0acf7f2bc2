package vmpb

// The container of a hypervisor process: the contract between the VM controller, which creates
// the Pod, the kubelet or host runner, and the process.
const (
	// EnvSpec is the environment variable with the VMSpec, as protobuf JSON or in base64.
	EnvSpec = "METROPOLIS_VM_SPEC"
	// EnvAuthority is the environment variable with the certificate authorities of
	// controller and hypervisors, in PEM form.
	EnvAuthority = "MILLWRIGHT_VM_AUTHORITY"
	// EnvCertFile, EnvKeyFile and EnvAuthorityFile are the environment variables with paths of files in PEM form:
	// a certificate of this hypervisor that others issue, with its chain, its key, and the authorities that are
	// trusted. All or none; with them neither EnvAuthority nor the token is used. The files may be
	// replaced while the process runs.
	EnvCertFile      = "MILLWRIGHT_VM_CERT_FILE"
	EnvKeyFile       = "MILLWRIGHT_VM_KEY_FILE"
	EnvAuthorityFile = "MILLWRIGHT_VM_AUTHORITY_FILE"
	// EnvListen is the environment variable with the address on which the process serves
	// gRPC over the network, host:port. Port 0 is any free one. Empty: [::]:0.
	EnvListen = "MILLWRIGHT_VM_LISTEN"
	// EnvDisksControl is the environment variable of a server of disks with the address on which it serves
	// millwright.storage.DiskServer to the VM controller, host:port. Port 0 is any free one; the server
	// reports which. Empty: [::]:DisksControlPort.
	EnvDisksControl = "MILLWRIGHT_VM_DISKS_CONTROL"
	// EnvDisksSessions is the environment variable of a server of disks with the address on which hypervisors
	// attach the disks, as EnvDisksControl. The host must be one that they reach, since the server answers Open
	// with it; so an unspecified one is replaced by that of EnvDisksControl, if that has one. Empty:
	// [::]:DisksSessionsPort.
	EnvDisksSessions = "MILLWRIGHT_VM_DISKS_SESSIONS"
	// EnvAccelerator is the environment variable with QEMU's accelerator: auto, kvm or tcg.
	// Empty: auto.
	EnvAccelerator = "MILLWRIGHT_VM_ACCELERATOR"
	// TranslatedCodeMiB bounds what QEMU keeps of the guest's code that it has translated, where it emulates: the Pod of a
	// hypervisor that may emulate needs it beside the guest's memory. When it is full, QEMU begins anew.
	TranslatedCodeMiB = 128
	// EnvUserNetwork is the environment variable with the prefixes of the guests' user-mode
	// network, at most one of each IP version, separated by a comma. They contain all
	// addresses of VMs. The second address of each is the gateway, which leads to the ports
	// EnvHostPorts of the host's loopback. Empty: no network.
	EnvUserNetwork = "MILLWRIGHT_VM_USER_NETWORK"
	// EnvHostPorts is the environment variable with the TCP ports of the host's loopback that
	// guests may connect to, at the gateway's address, separated by commas. Empty: none.
	EnvHostPorts = "MILLWRIGHT_VM_HOST_PORTS"
	// EnvMigrationBandwidth is the environment variable with the limit, in bytes per second, with
	// which the process sends memory and disk, each, when the VM migrates to another host. Empty:
	// QEMU's default for the memory, and none for the disk.
	EnvMigrationBandwidth = "MILLWRIGHT_VM_MIGRATION_BANDWIDTH"
	// EnvImages is the environment variable with the folder below which file URLs of images
	// and boot files may name files. It is set by who operates the host, never by the author
	// of a VM. Empty: no file URLs.
	EnvImages = "MILLWRIGHT_VM_IMAGES"
	// EnvImageServers is the environment variable with addresses of the host itself from which
	// images and boot files may be downloaded: IP:PORT, or IP for all its ports, separated by
	// commas. It is set by who operates the host. Empty: no server on the loopback, and none
	// with a link-local address.
	EnvImageServers = "MILLWRIGHT_VM_IMAGE_SERVERS"
	// EnvSwitch is the environment variable with the path of the socket of the host's switch, by
	// which guests reach each other. It is not below EnvRoot. It is set by who operates the
	// host. Empty: guests reach no other guests.
	EnvSwitch = "MILLWRIGHT_VM_SWITCH"
	// EnvOverlay is the environment variable with the IP address and UDP port, IP:PORT, at which other hypervisors reach
	// this one, to carry packets between their guests. The IP address may be in brackets. If empty, guests on different
	// hosts cannot reach each other.
	EnvOverlay = "MILLWRIGHT_VM_OVERLAY"
	// EnvOverlayMTU is the environment variable with the length of the longest packet between guests, in bytes. If
	// empty, it is derived from the network interface with the address in EnvOverlay.
	EnvOverlayMTU = "MILLWRIGHT_VM_OVERLAY_MTU"
	// EnvPorts is the environment variable with the TCP ports of the guest to which clients of the Pod may connect,
	// separated by commas. The process listens on the same ports of all addresses. If empty, nothing can connect to the
	// guest.
	EnvPorts = "MILLWRIGHT_VM_PORTS"
	// EnvProbe is the environment variable with the URL that determines whether the guest is ready, which the process
	// reports: tcp://:PORT, http://:PORT/PATH or https://:PORT/PATH. Required with EnvPorts.
	EnvProbe = "MILLWRIGHT_VM_PROBE"
	// EnvOutside is the environment variable that says whether guests reach what is outside of
	// their network, the host's name server included: OutsideRefused, or empty: they do. It is
	// set by who operates the host.
	EnvOutside = "MILLWRIGHT_VM_OUTSIDE"
	// OutsideRefused is a value of EnvOutside.
	OutsideRefused = "refused"
	// EnvRoot is the environment variable with a prefix for all paths of the container, for
	// a process without a file system of its own. Name and meaning are those of Windows
	// HostProcess containers.
	EnvRoot = "CONTAINER_SANDBOX_MOUNT_POINT"

	// DirRun is the folder for files that live as long as the Pod.
	DirRun = "/run/millwright"
	// SocketPath is the unix socket, of mode 0600, on which the process serves OOBManagement
	// and grpc.health.v1.
	SocketPath = DirRun + "/vm.sock"
	// RootDiskPath is the root disk if it is a file on its volume.
	RootDiskPath = "/var/lib/millwright/disk.img"
	// RootDevicePath is the root disk if it is a block device.
	RootDevicePath = devicesPath + "/root"
	// DataDisksPath is the folder with one for each data disk, of its name.
	DataDisksPath = "/var/lib/millwright-data"
	// UserDataPath is the file with the guest's configuration.
	UserDataPath = "/etc/millwright/user-data"
	// TokenPath is the file with the Pod's token for TokenAudience. It changes before the
	// token expires.
	TokenPath = "/var/run/secrets/millwright/token"
	// IdentityPath is the folder in which the VM controller has a volume of a CSI driver mounted that issues
	// certificates, and the next three are files in it, with the names of cert-manager.
	IdentityPath          = "/var/run/secrets/millwright-identity"
	IdentityCertFile      = IdentityPath + "/tls.crt"
	IdentityKeyFile       = IdentityPath + "/tls.key"
	IdentityAuthorityFile = IdentityPath + "/ca.crt"
	// TokenAudience is the audience of that token.
	TokenAudience = "vm.metropolis.monogon.dev"
	// TerminationMessagePath is the file for the Termination, as JSON.
	TerminationMessagePath = "/dev/termination-log"
)

// devicesPath is the folder with the nodes of block devices.
const devicesPath = "/dev/millwright"

// DataDiskPath returns the path of a data disk that is a file on its volume.
func DataDiskPath(name string) string { return DataDisksPath + "/" + name + "/disk.img" }

// DataDevicePath returns the path of a data disk that is a block device.
func DataDevicePath(name string) string { return devicesPath + "/data-" + name }

// Command returns the command of the container.
func Command() []string { return []string{"millwright", "hypervisor"} }

// The ports of a server of disks in a Pod with an address of its own. Where Pods share that of their host, both
// environment variables have port 0.
const (
	// DisksControlPort is where the VM controller opens and revokes.
	DisksControlPort = 8460
	// DisksSessionsPort is where hypervisors attach the disks.
	DisksSessionsPort = 8461
)

// OverlayPort is the UDP port of EnvOverlay in a Pod with an address of its own.
const OverlayPort = 8462

// DiskServerCommand returns the command of the container that serves the disks of a VM with VMSpec.disks_served.
//
// Its environment is that of a hypervisor, with a VMSpec that has the mode SM_RUN or SM_PREPARE_IMAGE, the paths, sizes and
// images of the disks, its own Pod's name as pod_name, and disks_served false; with EnvDisksControl and EnvDisksSessions instead of
// EnvListen. What it does not need is ignored: the lease, the addresses, the kernel. Its certificate, run folder,
// termination message and signals are those of a hypervisor; there is no socket, and no guest. It reads the disks from files
// only: a path below /dev is refused as InvalidSpec.
//
// It calls VMController.ReportState for the HypervisorID of its own Pod, and RunLease never: with STATE_PREPARING and
// STATE_WAITING as a hypervisor; and, once it serves, with STATE_RUNNING, image_prepared, disks with their sizes, and as endpoint the
// address for DiskServer's calls. Before that nothing listens. It repeats the report whenever it has another
// connection to a controller. It ends by SIGTERM only, as EndStopped, or by an error.
func DiskServerCommand() []string { return []string{"millwright", "disk-server"} }

// Termination is why a hypervisor process ended, the termination message of its container.
type Termination struct {
	// Reason is one of the constants below, or of a later version.
	Reason string `json:"reason"`
	// Message is a message for users.
	Message string `json:"message"`
}

// Reasons of a Termination. With the first three the exit code is 0, else 1.
const (
	// EndGuestShutdown: the guest powered itself off.
	EndGuestShutdown = "GuestShutdown"
	// EndTerminated: the controller said STATUS_TERMINATE.
	EndTerminated = "Terminated"
	// EndStopped: the process was asked to end (SIGTERM), and the guest with it.
	EndStopped = "Stopped"
	// EndInvalidSpec: the VMSpec, or another part of the environment, is invalid.
	EndInvalidSpec = "InvalidSpec"
	// EndImageUnavailable: an image or boot file cannot be downloaded now.
	EndImageUnavailable = "ImageUnavailable"
	// EndImageRejected: an image or boot file cannot be used: checksum, format, size.
	EndImageRejected = "ImageRejected"
	// EndNoSpace: there is no space left for the disk.
	EndNoSpace = "NoSpace"
	// EndDiskLost: the disk is gone, although the VM has had one.
	EndDiskLost = "DiskLost"
	// EndDiskLocked: another process holds the lock of the disk.
	EndDiskLocked = "DiskLocked"
	// EndNoQEMU: QEMU, or the UEFI firmware of a VM that boots by it, is not installed.
	EndNoQEMU = "NoQEMU"
	// EndQEMUFailed: QEMU did not start, or ended unexpectedly.
	EndQEMUFailed = "QEMUFailed"
	// EndNotAuthorized: the controller did not authorize this process, or the process has no certificate with
	// which it could be.
	EndNotAuthorized = "NotAuthorized"
	// EndNotArrived: a target of a migration got no VM, or not the authority. Its guest has never run.
	EndNotArrived = "NotArrived"
	// EndLeaseExpired: the lease was not renewed in time, so another hypervisor may run the VM.
	EndLeaseExpired = "LeaseExpired"
	// EndInternal: anything else.
	EndInternal = "Internal"
)
