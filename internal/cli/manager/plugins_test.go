package manager

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/cli/plugins"
	"github.com/millwright-dev/millwright/internal/manager"
	driverpb "github.com/millwright-dev/millwright/proto/driver"
)

// serve runs a server of drivers until the end of the test.
func serve(t *testing.T, p *pluginServer) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// register registers a driver until the end of the test and returns the server's response.
func register(t *testing.T, socket, kind string) (*driverpb.MCMside, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := driverpb.NewInfraClient(conn).Register(ctx, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	registration := &driverpb.Registration{
		Kind: kind, ApiVersion: "machine.sapcloud.io/v1alpha1", Instance: "0123456789abcdef", Operations: []driverpb.OperationType{1, 2, 3, 4},
	}
	if err := stream.Send(&driverpb.DriverSide{Content: &driverpb.DriverSide_Registration{Registration: registration}}); err != nil {
		t.Fatal(err)
	}
	return stream.Recv()
}

// TestPlugins_ReceiveManagerVersion checks that a driver receives the manager's version, which it logs.
func TestPlugins_ReceiveManagerVersion(t *testing.T) {
	flags := plugins.Flags{Socket: filepath.Join(t.TempDir(), "s"), Version: "millwright v1.2.3"}
	serve(t, newPlugins(flags, nil, logr.Discard()))
	response, err := register(t, flags.Socket, "one")
	if err != nil || response.GetRegistered().GetVersion() != flags.Version {
		t.Errorf("the driver received %v, %v", response, err)
	}
}

// TestPlugins_ServeAllClusters checks that the clusters of a fleet have the drivers of other processes, whether these
// register before or after the controllers of a cluster start, and that none takes the place of a built-in driver.
func TestPlugins_ServeAllClusters(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	f := newFleetFlags(t, "--driver-socket="+socket)
	if err := f.validate(); err != nil {
		t.Fatalf("only drivers of other processes: %v", err)
	}
	f.plugins = newPlugins(f.cluster.Driver.Plugins, registry.Kinds{{Name: "sim"}}, logr.Discard())
	serve(t, f.plugins)
	cluster := func(name string) (drivers *registry.Registry, stop func()) {
		t.Helper()
		settings, err := f.configure(name, nil)
		if err != nil {
			t.Fatal(err)
		}
		config := &manager.Config{Seed: &manager.Seed{}, Metrics: prometheus.NewRegistry(), Log: logr.Discard()}
		stop, err = settings.Open(t.Context(), config)
		if err != nil || len(config.Runnables) > 0 {
			t.Fatalf("%d programs of the cluster, %v", len(config.Runnables), err)
		}
		return config.Drivers, stop
	}
	first, stopFirst := cluster("first")
	if _, err := register(t, socket, "one"); err != nil {
		t.Fatal(err)
	}
	second, stopSecond := cluster("second")
	defer stopSecond()
	if !first.Has("one") || !second.Has("one") {
		t.Errorf("the clusters have %s and %s", first, second)
	}
	if _, err := register(t, socket, "SIM"); err == nil || !strings.Contains(err.Error(), "built-in") {
		t.Errorf("a driver with the name of a built-in one: %v", err)
	}
	stopFirst()
	if _, err := register(t, socket, "two"); err != nil {
		t.Fatal(err)
	}
	if first.Has("two") || !second.Has("two") {
		t.Errorf("the stopped cluster has %s, and the other one %s", first, second)
	}
}
