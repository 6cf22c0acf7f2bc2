package instance

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/credentials/insecure"

	"github.com/millwright-dev/millwright/driver/plugin"
	"github.com/millwright-dev/millwright/driver/sim"
)

// TestInstance_PluginDriverRegisters checks that a driver in another process can register with the command.
func TestInstance_PluginDriverRegisters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	socket := filepath.Join(w.dir, "s")
	serve := func(kind string) (stop func()) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			done <- plugin.Serve(ctx, sim.New(w.config), plugin.Options{Kind: kind, Target: "unix://" + socket, Credentials: insecure.NewCredentials()})
		}()
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("the driver ended with: %v", err)
			}
		}
	}
	w.write("class", strings.Replace(classFile, "provider: sim", "provider: plug", 1))
	stop := serve("Plug") // case-insensitive
	w.must(about("create", "test", "--driver-socket", socket)...)
	w.want("test")
	if out := w.must(about("list", "--driver-socket", socket)...); !strings.Contains(out, "sim:///shoot/test/") {
		t.Errorf("list: %q", out)
	}
	w.must(about("delete", "test", "--driver-socket", socket)...)
	w.want()
	stop()
	for _, want := range []string{`Waiting for driver "plug" to register at unix://` + socket, `msg="A driver has registered" kind=Plug`} {
		if !strings.Contains(w.problems.String(), want) {
			t.Errorf("lacks %q:\n%s", want, w.problems)
		}
	}

	defer serve("other")()
	once := sync.OnceFunc(func() { t.Cleanup(serve("plug")) })
	w.problems.written = func(text string) {
		if strings.Contains(text, "this command waits for driver") {
			once()
		}
	}
	w.must(about("list", "--driver-socket", socket)...) // after a driver of another kind was rejected

	_, err := w.run(about("list", "--driver-socket", "@alone", "--driver-wait", "20ms")...)
	if err == nil || !strings.Contains(err.Error(), `driver "plug" has not registered within 20ms (--driver-wait)`) {
		t.Errorf("without a driver: %v", err)
	}
	listener, err := net.Listen("unix", filepath.Join(w.dir, "taken"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if _, err := w.run(about("list", "--driver-socket", "@taken")...); err == nil || !strings.Contains(err.Error(), "another process is listening") {
		t.Errorf("a socket that is taken: %v", err)
	}
	if _, err := w.run(about("list")...); err == nil || !strings.Contains(err.Error(), "--driver-socket") {
		t.Errorf("without a socket: %v", err)
	}
}
