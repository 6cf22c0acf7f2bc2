package child

import "syscall"

// attributes returns those of a child in a new session.
func attributes(parentDeathSignal syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: parentDeathSignal}
}
