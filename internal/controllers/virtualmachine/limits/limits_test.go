package limits

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/utils/clock"
)

// anyone admits without a certificate.
type anyone struct {
	credentials.TransportCredentials
}

func (anyone) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return raw, nil, nil
}

// TestAnonymousConnectionsEnd: they are closed after a while, and leave room for others.
func TestAnonymousConnectionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		admit := New(clock.RealClock{}).Admit(anyone{insecure.NewCredentials()})
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
			t.Errorf("the first ended after %s with %v", time.Since(begin), err)
		}
		synctest.Wait()
		if open() == nil {
			t.Error("there is no room after the end of the others")
		}
	})
}

func TestCounter(t *testing.T) {
	c := newCounter(3, 2)
	first, _ := c.take("a")
	c.take("a")
	if _, ok := c.take("a"); ok {
		t.Error("a third of one key")
	}
	c.take("b")
	if _, ok := c.take("b"); ok {
		t.Error("a fourth in total")
	}
	first()
	first() // a connection may be closed twice
	if _, ok := c.take("a"); !ok {
		t.Error("what was released cannot be taken")
	}
	if _, ok := c.take("b"); ok {
		t.Error("releasing twice made room twice")
	}
}

func TestOrigin(t *testing.T) {
	of := func(address string) origin { return originOf(&net.TCPAddr{IP: net.ParseIP(address), Port: 1}) }
	if of("192.0.2.1") == of("192.0.2.2") || of("192.0.2.1") != of("::ffff:192.0.2.1") {
		t.Error("IPv4 addresses are not told apart")
	}
	if of("2001:db8::1") != of("2001:db8::2") || of("2001:db8::1") == of("2001:db8:0:1::1") {
		t.Error("an IPv6 network is not one origin")
	}
}
