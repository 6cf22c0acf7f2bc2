package vmpb

// The container that a hypervisor process runs in. Whoever makes the Pod, whoever runs
// it and the process itself agree on this.
const (
	// EnvSpec is the environment variable with the VMSpec, as protobuf JSON or in base64.
	EnvSpec = "METROPOLIS_VM_SPEC"
	// EnvAuthority is the environment variable with the certificates of the authority
	// that signs for controller and hypervisors, in PEM form.
	EnvAuthority = "MILLWRIGHT_VM_AUTHORITY"
	// EnvListen is the environment variable with the address on which the process
	// serves gRPC to others, host:port. Port 0 is any free one. Empty: [::]:0.
	EnvListen = "MILLWRIGHT_VM_LISTEN"
	// EnvAccelerator is the environment variable that chooses QEMU's accelerator: auto,
	// kvm or tcg. Empty: auto.
	EnvAccelerator = "MILLWRIGHT_VM_ACCELERATOR"
	// EnvUserNetwork is the environment variable with the prefixes of the user-mode
	// network that guests see, at most one of each IP version, separated by a comma. The
	// second address of each is the gateway, which leads to the host's loopback. All
	// addresses of a VM are of these prefixes. Empty: no network.
	EnvUserNetwork = "MILLWRIGHT_VM_USER_NETWORK"
	// EnvRoot is the environment variable with a folder that stands before every path
	// of the container, set where the process has no file system of its own. The name
	// and meaning are those of Kubernetes for Windows' HostProcess containers.
	EnvRoot = "CONTAINER_SANDBOX_MOUNT_POINT"

	// DirRun is the folder for what lives as long as the Pod.
	DirRun = "/run/millwright"
	// SocketPath is the unix socket, of mode 0600, on which the process serves
	// OOBManagement and grpc.health.v1 to whoever may open it.
	SocketPath = DirRun + "/vm.sock"
	// RootDiskPath is the root disk: a file on the volume, or the device.
	RootDiskPath = "/var/lib/millwright/disk.img"
	// UserDataPath is the file with the guest's configuration.
	UserDataPath = "/etc/millwright/user-data"
	// TokenPath is the file with the Pod's token for TokenAudience. It changes before
	// the token runs out.
	TokenPath = "/var/run/secrets/millwright/token"
	// TokenAudience is the audience of that token.
	TokenAudience = "vm.metropolis.monogon.dev"
	// TerminationMessagePath is the file in which the process leaves, as JSON of
	// Termination, why it ended.
	TerminationMessagePath = "/dev/termination-log"
)

// Command is the command of the container.
func Command() []string { return []string{"millwright", "hypervisor"} }

// Termination is why a hypervisor process ended: what it leaves as its container's
// termination message.
type Termination struct {
	// Reason is one of the constants below, or of a later version.
	Reason string `json:"reason"`
	// Message is a sentence for people.
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
	// EndInvalidSpec: the VMSpec, or another part of the environment, is wrong.
	EndInvalidSpec = "InvalidSpec"
	// EndImageUnavailable: an image or boot file cannot be fetched now.
	EndImageUnavailable = "ImageUnavailable"
	// EndImageRejected: what was fetched cannot be used: checksum, format, size.
	EndImageRejected = "ImageRejected"
	// EndNoSpace: there is no space left for the disk.
	EndNoSpace = "NoSpace"
	// EndDiskLocked: another process has the disk.
	EndDiskLocked = "DiskLocked"
	// EndNoQEMU: QEMU is not installed.
	EndNoQEMU = "NoQEMU"
	// EndQEMUFailed: QEMU did not start, or ended unexpectedly.
	EndQEMUFailed = "QEMUFailed"
	// EndNotAuthorized: the controller did not give this process the VM.
	EndNotAuthorized = "NotAuthorized"
	// EndInternal: anything else.
	EndInternal = "Internal"
)
