package pluginserver

import (
	"net"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"
)

// refusalsEvery limits how often refused connections are logged, because anyone on the network can cause them.
const refusalsEvery = 10 * time.Second

// logged logs why connections are refused, for example because of a certificate from another authority. The
// driver itself gets little information about that.
type logged struct {
	credentials.TransportCredentials
	log       logr.Logger
	sometimes *rate.Sometimes
}

func newLogged(inner credentials.TransportCredentials, log logr.Logger) logged {
	return logged{inner, log, &rate.Sometimes{First: 5, Interval: refusalsEvery}}
}

// ServerHandshake implements credentials.TransportCredentials.
func (l logged) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	remote := conn.RemoteAddr().String()
	secured, info, err := l.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		l.sometimes.Do(func() {
			l.log.Info("Refused the connection of a driver", "remote", remote, "reason", err.Error())
		})
	}
	return secured, info, err
}

// Clone implements credentials.TransportCredentials.
func (l logged) Clone() credentials.TransportCredentials {
	return logged{l.TransportCredentials.Clone(), l.log, l.sometimes}
}
