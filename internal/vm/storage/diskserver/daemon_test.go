package diskserver

import (
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// Otherwise, each call of Open would wait forever for a daemon that hangs during its start.
func TestDaemon_IsKilledIfItDoesNotStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer func() { _ = theirs.Close() }()
		killed := make(chan struct{})
		d := &daemon{ready: make(chan struct{}), ended: make(chan struct{}), kill: func() { close(killed) }}
		go d.negotiate(ours)
		time.Sleep(startLimit - time.Nanosecond)
		select {
		case <-killed:
			t.Error("the daemon was killed too early")
		default:
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		select {
		case <-killed:
		default:
			t.Error("the daemon is still running")
		}
		select {
		case <-d.ready:
			t.Error("the daemon is ready")
		default:
		}
	})
}
