package service

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/utils/clock"
)

// anonymous accepts connections without a certificate.
type anonymous struct {
	credentials.TransportCredentials
}

func (anonymous) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return raw, nil, nil
}

// TestServer_AnonymousConnectionsTimeOut checks that connections without a certificate are closed after a while and no longer count.
func TestServer_AnonymousConnectionsTimeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		admit := newLimits(clock.RealClock{}).admit(anonymous{insecure.NewCredentials()})
		open := func() net.Conn {
			ours, theirs := net.Pipe()
			t.Cleanup(func() { ours.Close() })
			if _, _, err := admit.ServerHandshake(theirs); err != nil {
				return nil
			}
			return ours
		}
		first := open()
		for range maxAnonymousPerAddress - 1 {
			open()
		}
		if open() != nil {
			t.Fatal("a connection over the limit was admitted")
		}
		begin := time.Now()
		if _, err := first.Read(make([]byte, 1)); err == nil || time.Since(begin) != anonymousTime {
			t.Errorf("the first connection was closed after %s with %v", time.Since(begin), err)
		}
		synctest.Wait()
		if open() == nil {
			t.Error("no connection is admitted after the others were closed")
		}
	})
}
