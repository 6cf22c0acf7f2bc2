package pluginserver

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	grpccodes "google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	driverpb "github.com/millwright-dev/millwright/proto/driver"
)

// Driver executes its operations in another process. It implements all optional interfaces of package driver.
// Operations that the other process does not support return Unimplemented. While no process is registered, all
// operations return Unavailable.
type Driver struct {
	kind string
	key  []byte

	mu      sync.Mutex
	session *session // nil if not connected
	last    *driverpb.Registration
	left    time.Time
}

var (
	_ driver.Driver            = (*Driver)(nil)
	_ driver.Initializer       = (*Driver)(nil)
	_ driver.VolumeIdentifier  = (*Driver)(nil)
	_ driver.ClassMigrator     = (*Driver)(nil)
	_ driver.KindMigrator      = (*Driver)(nil)
	_ driver.FailureDomains    = (*Driver)(nil)
	_ driver.Locator           = (*Driver)(nil)
	_ driver.Updater           = (*Driver)(nil)
	_ driver.APIGroupSeparator = (*Driver)(nil)
)

func newDriver(kind string, key []byte) *Driver { return &Driver{kind: kind, key: key} }

// enter makes a session the current one.
func (d *Driver) enter(next *session) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if previous := d.session; previous != nil {
		if previous.registration.GetInstance() != next.registration.GetInstance() {
			return grpcstatus.Errorf(grpccodes.AlreadyExists, "another driver already serves kind %q", d.kind)
		}
		previous.cut(grpcstatus.Error(grpccodes.Aborted, "the driver has registered again"))
	}
	d.session, d.last = next, next.registration
	return nil
}

// leave closes a session.
func (d *Driver) leave(gone *session, cause error) {
	gone.cut(cause)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.session == gone {
		d.session, d.left = nil, time.Now()
	}
}

func (d *Driver) connected() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.session != nil
}

// running returns an operation that is running.
func (d *Driver) running(id string) *operation {
	d.mu.Lock()
	current := d.session
	d.mu.Unlock()
	if current == nil {
		return nil
	}
	return current.find(id)
}

// sessionFor returns the session that can execute an operation.
func (d *Driver) sessionFor(kind driverpb.OperationType) (*session, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	// An operation that the last driver did not support fails immediately, without waiting for a driver.
	if !slices.Contains(d.last.GetOperations(), kind) {
		return nil, status.Error(codes.Unimplemented, fmt.Sprintf("the driver %q does not implement %v", d.kind, kind))
	}
	if d.session == nil {
		return nil, status.Error(codes.Unavailable, fmt.Sprintf("the driver %q has been disconnected since %s", d.kind, d.left.UTC().Format(time.RFC3339)))
	}
	return d.session, nil
}

// do executes an operation. If the driver returns an error, do returns both the result and the error. The
// result is nil for all other errors.
func (d *Driver) do(ctx context.Context, op *operation) (*driverpb.OperationResult, error) {
	current, err := d.sessionFor(op.message.GetOperationType())
	if err != nil {
		return nil, err
	}
	if size := proto.Size(op.message); size > driverpb.MaxMessage-1024 {
		return nil, status.Error(codes.InvalidArgument, fmt.Sprintf("the operation has %d bytes, but driver %q accepts at most %d", size, d.kind, driverpb.MaxMessage))
	}
	result, err := current.call(ctx, op)
	if err != nil {
		return nil, err
	}
	return result, failureOf(result)
}

// failureOf returns the error of a result, or nil for success.
func failureOf(result *driverpb.OperationResult) error {
	code := codes.Code(result.GetCode())
	if int64(code) >= int64(len(codes.All())) {
		code = codes.Unknown
	}
	return status.Error(code, driverpb.Shortened(result.GetMessage()))
}

// ask executes an operation for a machine, like do.
func (d *Driver) ask(ctx context.Context, kind driverpb.OperationType, machine *v1alpha1.Machine, class *v1alpha1.MachineClass, secret *corev1.Secret) (*driverpb.OperationResult, error) {
	op, err := d.about(kind, machine, class, secret)
	if err != nil {
		return nil, err
	}
	return d.do(ctx, op)
}

// about returns an operation for a machine with its class and Secret. Each of them may be nil.
func (d *Driver) about(kind driverpb.OperationType, machine *v1alpha1.Machine, class *v1alpha1.MachineClass, secret *corev1.Secret) (*operation, error) {
	op := &operation{message: &driverpb.Operation{OperationType: kind}}
	var err error
	if machine != nil {
		op.message.MachineName = machine.Name
		if op.message.Machine, err = encode("Machine", machine); err != nil {
			return nil, err
		}
	}
	if class == nil {
		return op, nil
	}
	if op.class, err = encode("MachineClass", class); err != nil {
		return nil, err
	}
	op.message.MachineClass = &driverpb.MachineClassMeta{Namespace: class.Namespace, Name: class.Name, Version: d.version(op.class)}
	if secret == nil {
		return op, nil
	}
	op.secret = secret.Data
	data, err := encode("Secret", secret.Data)
	if err != nil {
		return nil, err
	}
	op.message.Secret = &driverpb.SecretMeta{Namespace: class.Namespace, Name: class.Name, Version: d.version(data)}
	return op, nil
}

func encode(what string, object any) ([]byte, error) {
	encoded, err := json.Marshal(object)
	if err != nil {
		return nil, status.WrapError(codes.InvalidArgument, fmt.Sprintf("cannot encode the %s as JSON: %v", what, err), err)
	}
	return encoded, nil
}

// version returns a text that is equal if and only if the content is equal.
func (d *Driver) version(content []byte) string {
	mac := hmac.New(sha256.New, d.key)
	mac.Write(content)
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// remaining returns the time until a deadline, which is never negative.
func remaining(deadline time.Time) *durationpb.Duration {
	return durationpb.New(max(0, time.Until(deadline)))
}
