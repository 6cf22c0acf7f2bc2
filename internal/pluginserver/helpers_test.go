package pluginserver_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/plugin"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/pluginserver"
	driverpb "github.com/millwright-dev/millwright/proto/driver"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/memnet"
)

// manager is a server and the drivers that have registered with it.
type manager struct {
	*testing.T
	server  *pluginserver.Server
	network *memnet.Network
	added   chan *pluginserver.Driver
	refuse  error
	// returned contains the kinds that have registered again.
	returned chan string
}

func newManager(t *testing.T) *manager {
	m := &manager{T: t, network: memnet.New(), added: make(chan *pluginserver.Driver, 8), returned: make(chan string, 1024)}
	m.server = pluginserver.New(pluginserver.Options{Add: func(_ string, d *pluginserver.Driver) error {
		if m.refuse == nil {
			m.added <- d
		}
		return m.refuse
	}, Returned: func(kind string) { m.returned <- kind }})
	m.start(m.server.Serve, pluginserver.InMemory(m.network))
	return m
}

// start runs a server until the test is over.
func (m *manager) start(serve func(context.Context, *pluginserver.Endpoint) error, endpoint *pluginserver.Endpoint) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, endpoint) }()
	m.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			m.Errorf("the server returned: %v", err)
		}
	})
}

func (m *manager) options(kind string) plugin.Options {
	return plugin.Options{
		Kind: kind, Target: "passthrough:///manager", Credentials: insecure.NewCredentials(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(m.network.Dial)},
	}
}

// serve runs a driver until stop is called or the test is over.
func (m *manager) serve(d driver.Driver, options plugin.Options) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- plugin.Serve(ctx, d, options) }()
	once := func() {
		cancel()
		if err, first := <-done; first && err != nil {
			m.Errorf("the plug-in returned: %v", err)
		}
	}
	m.Cleanup(cancel)
	return once
}

// connect runs a driver as a plug-in and returns it as the manager sees it.
func connect(t *testing.T, d driver.Driver, change ...func(*plugin.Options)) *pluginserver.Driver {
	m := newManager(t)
	options := m.options("fake")
	for _, one := range change {
		one(&options)
	}
	m.serve(d, options)
	return <-m.added
}

// raw is a plug-in that sends whatever a test needs.
type raw struct {
	*testing.T
	client driverpb.InfraClient
	stream grpc.BidiStreamingClient[driverpb.DriverSide, driverpb.MCMside]
}

func (m *manager) raw(options ...grpc.DialOption) *raw {
	m.Helper()
	options = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(m.network.Dial),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)),
	}, options...)
	conn, err := grpc.NewClient("passthrough:///manager", options...)
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() { _ = conn.Close() })
	client := driverpb.NewInfraClient(conn)
	stream, err := client.Register(m.Context())
	if err != nil {
		m.Fatal(err)
	}
	return &raw{m.T, client, stream}
}

// registration returns a registration that is accepted, after changes.
func registration(change ...func(*driverpb.Registration)) *driverpb.Registration {
	r := &driverpb.Registration{
		Kind: "fake", ApiVersion: "machine.sapcloud.io/v1alpha1", Instance: "0123456789abcdef", MaxOperations: 2,
		Operations: []driverpb.OperationType{
			driverpb.OperationType_OT_CREATE_MACHINE, driverpb.OperationType_OT_DELETE_MACHINE,
			driverpb.OperationType_OT_LIST_MACHINES, driverpb.OperationType_OT_GET_MACHINE_STATUS,
		},
	}
	for _, one := range change {
		one(r)
	}
	return r
}

func (r *raw) send(message *driverpb.DriverSide) {
	r.Helper()
	if err := r.stream.Send(message); err != nil {
		r.Fatal(err)
	}
}

func (r *raw) register(registration *driverpb.Registration) {
	r.Helper()
	r.send(&driverpb.DriverSide{Content: &driverpb.DriverSide_Registration{Registration: registration}})
}

// registered registers and waits for the confirmation.
func (r *raw) registered(registration *driverpb.Registration) {
	r.Helper()
	r.register(registration)
	if r.receive().GetRegistered() == nil {
		r.Fatal("the response to the registration is not a confirmation")
	}
}

func (r *raw) receive() *driverpb.MCMside {
	r.Helper()
	message, err := r.stream.Recv()
	if err != nil {
		r.Fatal(err)
	}
	return message
}

// ended waits for the end of the stream and returns its error.
func (r *raw) ended() error {
	for {
		if _, err := r.stream.Recv(); err != nil {
			return err
		}
	}
}

// respond sends a successful result of an operation.
func (r *raw) respond(op *driverpb.Operation, change ...func(*driverpb.OperationResult)) {
	r.Helper()
	result := &driverpb.OperationResult{
		OperationId: op.GetOperationId(), OperationType: op.GetOperationType(), MachineName: op.GetMachineName(),
		ProviderId: "raw:///1", NodeName: "node",
	}
	for _, one := range change {
		one(result)
	}
	r.send(&driverpb.DriverSide{Content: &driverpb.DriverSide_Result{Result: result}})
}

// outcome is the result of a call.
type outcome struct {
	resp *driver.GetMachineStatusResponse
	err  error
}

// ask requests the status of a machine's VM and returns the outcome.
func ask(ctx context.Context, d driver.Driver, machine string) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		resp, err := d.GetMachineStatus(ctx, statusRequest(machine))
		done <- outcome{resp, err}
	}()
	return done
}

func statusRequest(machine string) *driver.GetMachineStatusRequest {
	m := fixture.Machine()
	m.Name = machine
	return &driver.GetMachineStatusRequest{
		Machine: m, MachineClass: fixture.MachineClass(),
		Secret: &corev1.Secret{Data: map[string][]byte{"token": []byte("s3cr3t")}},
	}
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("code is %v, want %v: %v", got, want, err)
	}
}

// soon returns a context that expires before the test times out.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Minute, errors.New("the test waited too long"))
	t.Cleanup(cancel)
	return ctx
}
