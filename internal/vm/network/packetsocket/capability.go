package packetsocket

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// openPacketSocket returns a socket that does not receive frames yet.
//
// The file of the program in the hypervisor image has the capability as permitted, but not as effective, because otherwise it
// would not start in Pods without the capability. The capability is effective only in this function, and only on its thread.
func openPacketSocket() (fd int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var before [2]unix.CapUserData // the header selects two elements
	if err := unix.Capget(&header, &before[0]); err != nil {
		return -1, os.NewSyscallError("capget", err)
	}
	raised := before
	raised[0].Effective |= before[0].Permitted & (1 << unix.CAP_NET_RAW)
	if raised != before {
		if err := unix.Capset(&header, &raised[0]); err != nil {
			return -1, os.NewSyscallError("capset", err)
		}
		defer func() { _ = unix.Capset(&header, &before[0]) }() // to give up a capability is always permitted
	}
	return unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
}
