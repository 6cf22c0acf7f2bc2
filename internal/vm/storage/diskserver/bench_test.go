package diskserver_test

import (
	"context"
	"net"
	"os/exec"
	"path/filepath"
	"testing"
)

// The cost of a session, measured with qemu-img bench: the disk in a file, and through TLS on loopback.
func BenchmarkSession(b *testing.B) {
	s := newInstallation(b).serve(newDisk(b, nil))
	s.open(7, first)
	socket := filepath.Join(directory(b), "disk")
	listener, err := net.Listen("unix", socket)
	must(b, err)
	ctx, cancel := context.WithCancel(b.Context())
	carried := make(chan struct{})
	go func() {
		defer close(carried)
		s.carrier(peer(first), 7).Carry(ctx, listener)
	}()
	defer func() { cancel(); <-carried }()
	for name, options := range map[string]string{
		"file":    "driver=raw,file.driver=file,file.filename=" + s.disk,
		"session": "driver=raw,file.driver=nbd,file.server.type=unix,file.server.path=" + socket + ",file.export=root",
	} {
		for kind, flags := range map[string][]string{
			"4KiB-one-by-one": {"-w", "-s", "4096", "-d", "1", "-c", "2000"},
			"64KiB-of-16":     {"-w", "-s", "65536", "-d", "16", "-c", "4000"},
		} {
			b.Run(name+"/"+kind, func(b *testing.B) {
				for b.Loop() {
					output, err := exec.Command("qemu-img", append(append([]string{"bench"}, flags...), "--image-opts", options)...).CombinedOutput()
					if err != nil {
						b.Fatalf("%v: %s", err, output)
					}
				}
			})
		}
	}
}
