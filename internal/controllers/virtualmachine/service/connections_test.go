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

func (a anonymous) Clone() credentials.TransportCredentials { return a }

// TestServer_AnonymousConnectionsTimeOut checks that connections without a certificate are closed after a while.
func TestServer_AnonymousConnectionsTimeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		admit := newLimits(clock.RealClock{}).admit(anonymous{insecure.NewCredentials()})
		ours, theirs := net.Pipe()
		defer ours.Close()
		if _, _, err := admit.Clone().ServerHandshake(theirs); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if _, err := ours.Read(make([]byte, 1)); err == nil || time.Since(begin) != anonymousTime {
			t.Errorf("the connection was closed after %s with %v", time.Since(begin), err)
		}
	})
}
