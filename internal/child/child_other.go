//go:build !linux

package child

import "syscall"

// attributes returns those of a child in a new session. Only Linux sends a signal when the parent terminates.
func attributes(syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true}
}
