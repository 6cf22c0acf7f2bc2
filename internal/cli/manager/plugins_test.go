package manager

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/cli/plugins"
	driverpb "github.com/millwright-dev/millwright/proto/driver"
)

// TestPlugins_ReceiveManagerVersion checks that a driver receives the manager's version, which it logs.
func TestPlugins_ReceiveManagerVersion(t *testing.T) {
	flags := plugins.Flags{Socket: filepath.Join(t.TempDir(), "s"), Version: "millwright v1.2.3"}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- newPlugins(flags, registry.New(registry.Options{MayGrow: true}), logr.Discard()).Start(ctx)
	}()
	conn, err := grpc.NewClient("unix://"+flags.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	stream, err := driverpb.NewInfraClient(conn).Register(ctx, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	registration := &driverpb.Registration{
		Kind: "one", ApiVersion: "machine.sapcloud.io/v1alpha1", Instance: "0123456789abcdef", Operations: []driverpb.OperationType{1, 2, 3, 4},
	}
	if err := stream.Send(&driverpb.DriverSide{Content: &driverpb.DriverSide_Registration{Registration: registration}}); err != nil {
		t.Fatal(err)
	}
	response, err := stream.Recv()
	if err != nil || response.GetRegistered().GetVersion() != flags.Version {
		t.Errorf("the driver received %v, %v", response, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
