package session

import (
	"context"
	"errors"
	"net"
	"time"
)

// firstPause and lastPause are the shortest and the longest pause between two attempts to accept a connection.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = time.Second
)

// Accept waits for the next connection of a listener that stays open until the context is canceled. It retries
// while the process has too many open files. It returns an error if the listener is closed or the context is
// canceled.
func Accept(ctx context.Context, from net.Listener) (net.Conn, error) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		conn, err := from.Accept()
		if err == nil || errors.Is(err, net.ErrClosed) {
			return conn, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
