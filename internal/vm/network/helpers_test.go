package network

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func makeDirectory(t *testing.T, socket string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
}

// startSwitch serves a switch until the returned function is called.
func startSwitch(t *testing.T, socket string) (stop func()) {
	t.Helper()
	listener, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket = %v, %v", info, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- quiet().Serve(ctx, listener) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// sendUntil sends frames from alice to bob until one arrives.
func sendUntil(t *testing.T, from *Link, got <-chan []byte) {
	t.Helper()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		from.Send(udp("10.77.0.11", 7))
		select {
		case <-got:
			return
		case <-again.C:
		case <-t.Context().Done():
			t.Fatal("no frame arrived")
		}
	}
}
