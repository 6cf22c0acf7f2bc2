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

// maxAnswer is the longest answer to a check that is read, in bytes.
const maxAnswer = 64 << 10

// Readyz asks an API server for /readyz, as nobody. One that lets nobody ask that counts as Ready: it cannot say more.
//
// The server's certificate is not verified, since nothing is told to it, and clients verify what they are connected to.
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
	response, err := http.ReadResponse(bufio.NewReader(io.LimitReader(secured, maxAnswer)), request)
	if err != nil {
		return Down, err
	}
	_ = response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK, http.StatusUnauthorized, http.StatusForbidden:
		return Ready, nil
	default:
		return Unready, fmt.Errorf("/readyz answers %s", response.Status)
	}
}
