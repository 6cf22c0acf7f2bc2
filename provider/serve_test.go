package provider_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/pluginserver"
	"github.com/millwright-dev/millwright/provider"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/freeport"
)

// asPlugin is the environment variable that makes the test binary run as the plugin of a driver.
const asPlugin = "MILLWRIGHT_TEST_AS_PLUGIN"

func TestMain(m *testing.M) {
	if os.Getenv(asPlugin) != "" {
		provider.Serve("fake", newFake, provider.WithFlags(addRegion))
	}
	os.Exit(m.Run())
}

// serveDrivers runs the manager's end at a socket until stop is called.
func serveDrivers(t *testing.T, socket string) (added <-chan *pluginserver.Driver, stop func()) {
	t.Helper()
	endpoint, err := pluginserver.Socket(socket)
	if err != nil {
		t.Fatal(err)
	}
	drivers, done := make(chan *pluginserver.Driver, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	s := pluginserver.New(pluginserver.Options{Add: func(_ string, d *pluginserver.Driver) error { drivers <- d; return nil }})
	go func() { done <- s.Serve(ctx, endpoint) }()
	var stopped atomic.Bool
	stop = func() {
		if stopped.CompareAndSwap(false, true) {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(stop)
	return drivers, stop
}

// TestServe: a driver runs as a process that registers, reports whether it is registered, registers again with the
// next manager, and exits after SIGTERM.
func TestServe(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process")
	}
	g, socket, health := gomega.NewWithT(t), filepath.Join(t.TempDir(), "s"), freeport.Address(t).String()
	added, stop := serveDrivers(t, socket)
	process := exec.CommandContext(t.Context(), os.Args[0], "--target=unix://"+socket, "--health-address="+health, "--example-region=north", "--max-reconnect-delay=100ms")
	process.Env = append(os.Environ(), asPlugin+"=1")
	var out bytes.Buffer
	process.Stdout, process.Stderr = &out, &out
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Process.Kill() })
	probe := func(path string) func() (int, error) {
		return func() (int, error) {
			response, err := http.Get("http://" + health + path)
			if err != nil {
				return 0, err
			}
			return response.StatusCode, response.Body.Close()
		}
	}
	within := func(check any) gomega.AsyncAssertion { return g.Eventually(check).WithTimeout(5 * time.Minute) }

	var d *pluginserver.Driver
	within(added).Should(gomega.Receive(&d))
	_, err := d.GetMachineStatus(t.Context(), &driver.GetMachineStatusRequest{Machine: fixture.Machine(), MachineClass: fixture.MachineClass(), Secret: &corev1.Secret{}})
	if !status.Is(err, codes.NotFound) {
		t.Errorf("the driver returned %v", err)
	}
	within(probe("/readyz")).Should(gomega.Equal(http.StatusOK))
	stop()
	within(probe("/readyz")).Should(gomega.Equal(http.StatusServiceUnavailable))
	within(probe("/healthz")).Should(gomega.Equal(http.StatusOK))
	added, _ = serveDrivers(t, socket)
	within(added).Should(gomega.Receive())
	within(probe("/readyz")).Should(gomega.Equal(http.StatusOK))

	if err := process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := process.Wait(); err != nil {
		t.Errorf("process exited with %v:\n%s", err, &out)
	}
	for _, line := range []string{"Registered with the manager", "Not connected to the manager"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("the log does not contain %q:\n%s", line, &out)
		}
	}
}

// closing is a driver that runs in the background and implements io.Closer.
type closing struct {
	*fake.Driver
	started, closed chan struct{}
}

func (c closing) Start(ctx context.Context) error {
	close(c.started)
	<-ctx.Done()
	return nil
}

func (c closing) Close() error {
	close(c.closed)
	return errors.New("close failed")
}

// TestDriver_IsStartedAndClosed: a driver is started, and closed when the program exits.
func TestDriver_IsStartedAndClosed(t *testing.T) {
	c := closing{fake.New(fake.Config{}), make(chan struct{}), make(chan struct{})}
	p := provider.New("fake", func(_ context.Context, env provider.Environment) (driver.Driver, error) {
		if env.Installation != "mine" || env.Control != nil || env.Target != nil {
			t.Errorf("got environment %+v", env)
		}
		return c, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- p.RunPlugin(ctx, "--target=unix://"+filepath.Join(t.TempDir(), "s"), "--installation=mine")
	}()
	<-c.started
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	<-c.closed
}

// TestPlugin_RejectsInvalidSettings: an invalid plugin returns an error.
func TestPlugin_RejectsInvalidSettings(t *testing.T) {
	fails := func(context.Context, provider.Environment) (driver.Driver, error) {
		return nil, errors.New("no such region")
	}
	socket, one := "--target=unix:///nowhere", provider.New("example", newFake)
	cases := map[string]struct {
		program *provider.Provider
		args    []string
		want    string
	}{
		"no name":                {provider.New(provider.AnyClass, newFake), []string{socket}, "needs a name"},
		"invalid name":           {provider.New("my driver", newFake), []string{socket}, `invalid driver name "my driver"`},
		"several":                {provider.New("example", newFake, provider.WithDriver(registry.Kind{Name: "other", Open: newFake})), []string{socket}, "one driver"},
		"a flag of the plugin":   {provider.New("example", newFake, provider.WithFlags(func(f *pflag.FlagSet) { f.Int("target", 0, "") })), nil, "--target"},
		"no target":              {one, nil, "--target: required"},
		"an argument":            {one, []string{socket, "more"}, "more"},
		"no port":                {one, []string{"--target=manager"}, "neither unix:///PATH nor HOST:PORT"},
		"no certificates":        {one, []string{"--target=manager:1"}, "--tls-cert-file"},
		"some certificates":      {one, []string{"--target=manager:1", "--tls-cert-file=x", "--tls-private-key-file=x"}, "--tls-ca-file"},
		"missing certificates":   {one, []string{"--target=manager:1", "--tls-cert-file=/x", "--tls-private-key-file=/y", "--tls-ca-file=/z"}, "certificate /x with key /y"},
		"TLS at a socket":        {one, []string{socket, "--tls-ca-file=x"}, "cannot be used with a unix socket"},
		"not loopback":           {one, []string{"--target=192.0.2.1:1", "--insecure-loopback"}, "loopback"},
		"insecure, certificates": {one, []string{"--target=127.0.0.1:1", "--insecure-loopback", "--tls-ca-file=x"}, "cannot be used with"},
		"no operation":           {one, []string{socket, "--max-operations=0"}, "--max-operations"},
		"no delay":               {one, []string{socket, "--max-reconnect-delay=0s"}, "--max-reconnect-delay"},
		"invalid health address": {one, []string{socket, "--health-address=8080"}, "--health-address"},
		"verbosity":              {one, []string{socket, "--v=-1"}, "--v"},
		"cannot be opened":       {provider.New("example", fails), []string{socket}, "no such region"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := tc.program.RunPlugin(t.Context(), tc.args...)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want %q", err, tc.want)
			}
		})
	}
}
