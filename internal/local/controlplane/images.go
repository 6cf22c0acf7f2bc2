package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/millwright-dev/millwright/internal/local/proc"
)

// ServeFiles serves the files of a folder over HTTP on a port of 127.0.0.1 until the
// context ends: disk images and kernels for VMs, which hold nothing secret. It returns as
// soon as it serves; the channel yields its end. Errors: *PortTakenError.
func ServeFiles(ctx context.Context, dir string, port int) (<-chan error, error) {
	listener, err := net.Listen("tcp4", net.JoinHostPort(loopback, strconv.Itoa(port)))
	if err != nil {
		return nil, errors.Join(&PortTakenError{Port: port, PID: proc.Listener(port)}, err)
	}
	server := &http.Server{Handler: http.FileServer(http.Dir(dir)), ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { server.Close() }) // a download can be repeated
	served := make(chan error, 1)
	go func() {
		err := server.Serve(listener)
		if errors.Is(err, http.ErrServerClosed) {
			err = nil
		} else {
			err = fmt.Errorf("serving %s: %w", dir, err)
		}
		served <- err
	}()
	return served, nil
}
