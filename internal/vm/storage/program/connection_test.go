package program

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// A controller that was replaced, or that closes an idle connection, receives the server's address again.
func TestReport_IsRepeatedOnEachConnection(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	server := grpc.NewServer()
	go func() { _ = server.Serve(listener) }()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	calls, ended := make(chan struct{}, 10), make(chan struct{})
	go func() {
		defer close(ended)
		onConnection(ctx, conn, func() { calls <- struct{}{} })
	}()
	for _, end := range []func(*grpc.Server){(*grpc.Server).Stop, (*grpc.Server).GracefulStop} {
		select {
		case <-calls:
		case <-time.After(time.Minute):
			t.Fatal("a new connection was not detected")
		}
		end(server)
		if listener, err = net.Listen("tcp", address); err != nil {
			t.Fatal(err)
		}
		server = grpc.NewServer()
		go func() { _ = server.Serve(listener) }()
	}
	<-calls
	defer server.Stop()
	cancel()
	<-ended
}
