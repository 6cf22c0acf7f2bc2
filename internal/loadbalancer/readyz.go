package loadbalancer

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
)

// maxResponse is the maximum number of bytes of a response that is read.
const maxResponse = 64 << 10

// Readyz requests /readyz from an API server anonymously. A server that does not allow that counts as Ready,
// since it cannot report more.
//
// The server's certificate is not verified: nothing confidential is sent, and clients verify the server that
// they are connected to.
func Readyz(ctx context.Context, conn net.Conn) (Health, error) {
	secured := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
	if err := secured.HandshakeContext(ctx); err != nil {
		return Down, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://load-balancer/readyz", nil)
	if err != nil {
		return Down, err
	}
	request.Close = true
	if err := request.Write(secured); err != nil {
		return Down, err
	}
	response, err := http.ReadResponse(bufio.NewReader(io.LimitReader(secured, maxResponse)), request)
	if err != nil {
		return Down, err
	}
	_ = response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK, http.StatusUnauthorized, http.StatusForbidden:
		return Ready, nil
	default:
		return Unready, fmt.Errorf("/readyz returned %s", response.Status)
	}
}
