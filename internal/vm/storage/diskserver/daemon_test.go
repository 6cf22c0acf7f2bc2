package diskserver

import (
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// Otherwise each call of Open would wait forever for a daemon that hangs while it starts.
func TestDaemonThatDoesNotStartIsKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer func() { _ = theirs.Close() }()
		killed := make(chan struct{})
		d := &daemon{ready: make(chan struct{}), ended: make(chan struct{}), kill: func() { close(killed) }}
		go d.negotiate(ours)
		time.Sleep(startLimit - time.Nanosecond)
		select {
		case <-killed:
			t.Error("it is killed before its time")
		default:
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		select {
		case <-killed:
		default:
			t.Error("it lives on")
		}
		select {
		case <-d.ready:
			t.Error("it is ready")
		default:
		}
	})
}
