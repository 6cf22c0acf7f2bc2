// Package plugin runs a driver in a separate process: it registers the driver with a machine manager, and executes
// the operations that the manager sends.
//
//	err := plugin.Serve(ctx, myDriver, plugin.Options{Kind: "mycloud", Target: "unix:///run/millwright/drivers.sock"})
//
// When the connection is lost, all operations are canceled, and the driver registers again. Both processes may be
// restarted at any time. If the result of an operation was lost, the manager repeats the operation. This is why the
// contract of package driver requires CreateMachine to be idempotent.
//
// For drivers in other languages, proto/driver/driver.proto describes the protocol.
package plugin

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	driverpb "github.com/millwright-dev/millwright/proto/driver"
)

// Options configure [Serve].
type Options struct {
	// Kind of machines: the value of provider in MachineClasses. Required.
	Kind string
	// Version of the driver, for the manager's log. Optional, at most 63 bytes.
	Version string
	// Target is the address at which the manager serves drivers: "unix:///PATH" or "HOST:PORT". Required.
	Target string
	// Credentials for the connection, for example those of [TLS]. Required: there is no default, so that Secrets
	// are not sent unencrypted by mistake. For a Unix socket, use google.golang.org/grpc/credentials/insecure.
	Credentials credentials.TransportCredentials
	// MaxOperations is the maximum number of concurrent operations. Zero means 50; at most 1000.
	MaxOperations int
	// MaxReconnectDelay limits the delay between two connection attempts, which starts at 200 ms and doubles. Zero
	// means five seconds.
	MaxReconnectDelay time.Duration
	// MigratedKinds are kinds of classes from before MachineClass, such as "AWSMachineClass", that the driver
	// migrates. If nil, the kinds that a driver.KindMigrator returns are used.
	MigratedKinds []string
	// Connected is called with true when the driver has registered, and with false when the registration is lost.
	// Calls do not overlap. Optional.
	Connected func(bool)
	// DialOptions are additional options for the connection. Optional.
	DialOptions []grpc.DialOption
}

// Delays between two attempts to register.
const (
	firstDelay        = 200 * time.Millisecond
	defaultDelayLimit = 5 * time.Second
)

// permanent are the codes of rejections that are not retried.
var permanent = []codes.Code{codes.InvalidArgument, codes.FailedPrecondition, codes.PermissionDenied, codes.Unimplemented}

// Serve runs a driver until the context is done, and returns nil when all operations have completed. It retries
// forever while the manager does not respond or has another driver of this kind. It returns an error if the manager
// rejects the driver permanently, or if an option is missing.
//
// Changes of the connection are logged to the logger of the context, if there is one. Operations get the same
// logger.
func Serve(ctx context.Context, d driver.Driver, options Options) error {
	if err := options.complete(); err != nil {
		return err
	}
	registration := registrationOf(d, options)
	var running sync.WaitGroup
	defer running.Wait()
	backoff := options.delays()
	for {
		s := &session{driver: d, options: options, registration: registration, all: &running}
		err := s.run(ctx)
		if s.registered {
			options.Connected(false)
			backoff = options.delays()
		}
		if ctx.Err() != nil {
			return nil
		}
		if slices.Contains(permanent, status.Code(err)) {
			return fmt.Errorf("cannot register the driver with %s: %s", options.Target, status.Convert(err).Message())
		}
		delay := backoff.Step()
		logr.FromContextOrDiscard(ctx).Info("Not connected to the manager", "target", options.Target, "reason", status.Convert(err).Message(), "retryIn", delay.String())
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// complete sets defaults. It returns an error if an option is missing.
func (o *Options) complete() error {
	switch {
	case o.Kind == "":
		return errors.New("plugin: Kind is required")
	case o.Target == "":
		return errors.New("plugin: Target is required")
	case o.Credentials == nil:
		return errors.New("plugin: Credentials are required")
	}
	if o.Connected == nil {
		o.Connected = func(bool) {}
	}
	o.MaxReconnectDelay = cmp.Or(o.MaxReconnectDelay, defaultDelayLimit)
	return nil
}

func (o Options) delays() wait.Backoff {
	return wait.Backoff{Duration: min(firstDelay, o.MaxReconnectDelay), Factor: 2, Jitter: 0.5, Steps: 32, Cap: o.MaxReconnectDelay}
}

func registrationOf(d driver.Driver, options Options) *driverpb.Registration {
	kinds := options.MigratedKinds
	if kinds == nil {
		kinds = driver.MigratedKinds(d)
	}
	return &driverpb.Registration{
		Kind: options.Kind, ApiVersion: v1alpha1.SchemeGroupVersion.String(), Instance: rand.Text(), Operations: operationsOf(d),
		MaxOperations: uint32(options.limit()), SeparatesApiGroups: driver.SeparatesAPIGroups(d), Version: options.Version, MigratedKinds: kinds,
	}
}

func (o Options) limit() int {
	if o.MaxOperations <= 0 {
		return driverpb.DefaultOperations
	}
	return min(o.MaxOperations, driverpb.MaxOperations)
}

// operationsOf returns the operations that a driver implements, including those for which it returns Unimplemented.
func operationsOf(d driver.Driver) []driverpb.OperationType {
	all := []driverpb.OperationType{
		driverpb.OperationType_OT_CREATE_MACHINE, driverpb.OperationType_OT_DELETE_MACHINE,
		driverpb.OperationType_OT_LIST_MACHINES, driverpb.OperationType_OT_GET_MACHINE_STATUS,
	}
	if _, ok := driver.As[driver.Initializer](d); ok {
		all = append(all, driverpb.OperationType_OT_INITIALIZE_MACHINE)
	}
	if _, ok := driver.As[driver.VolumeIdentifier](d); ok {
		all = append(all, driverpb.OperationType_OT_GET_VOLUME_IDS)
	}
	if _, ok := driver.As[driver.Locator](d); ok {
		all = append(all, driverpb.OperationType_OT_LOCATE_MACHINE)
	}
	if _, ok := driver.As[driver.ClassMigrator](d); ok {
		all = append(all, driverpb.OperationType_OT_GENERATE_MACHINE_CLASS_FOR_MIGRATION)
	}
	if _, ok := driver.As[driver.FailureDomains](d); ok {
		all = append(all, driverpb.OperationType_OT_LIST_FAILURE_DOMAINS, driverpb.OperationType_OT_PLACE_MACHINE)
	}
	if _, ok := driver.As[driver.Updater](d); ok {
		all = append(all, driverpb.OperationType_OT_UPDATE_MACHINE)
	}
	return all
}

func (o Options) dial() (*grpc.ClientConn, error) {
	return grpc.NewClient(o.Target, append([]grpc.DialOption{
		grpc.WithTransportCredentials(o.Credentials),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(driverpb.MaxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: driverpb.KeepaliveTime, Timeout: driverpb.KeepaliveTime, PermitWithoutStream: true}),
	}, o.DialOptions...)...)
}
