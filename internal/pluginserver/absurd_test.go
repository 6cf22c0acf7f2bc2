package pluginserver_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/plugin"
	driverpb "github.com/millwright-dev/millwright/proto/driver"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

func wantEnd(t *testing.T, err error, want grpccodes.Code) {
	t.Helper()
	if got := grpcstatus.Code(err); got != want {
		t.Errorf("the stream ended with %v, want %v: %v", got, want, err)
	}
}

func TestRegistration_InvalidIsRejected(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*driverpb.Registration)
		want   grpccodes.Code
	}{
		"no kind":             {func(r *driverpb.Registration) { r.Kind = "" }, grpccodes.InvalidArgument},
		"kind is a path":      {func(r *driverpb.Registration) { r.Kind = "../vm" }, grpccodes.InvalidArgument},
		"long kind":           {func(r *driverpb.Registration) { r.Kind = strings.Repeat("k", 64) }, grpccodes.InvalidArgument},
		"kind of two lines":   {func(r *driverpb.Registration) { r.Kind = "a\nb" }, grpccodes.InvalidArgument},
		"no instance":         {func(r *driverpb.Registration) { r.Instance = "" }, grpccodes.InvalidArgument},
		"long instance":       {func(r *driverpb.Registration) { r.Instance = strings.Repeat("i", 65) }, grpccodes.InvalidArgument},
		"too many operations": {func(r *driverpb.Registration) { r.MaxOperations = 1001 }, grpccodes.InvalidArgument},
		"long version":        {func(r *driverpb.Registration) { r.Version = strings.Repeat("v", 64) }, grpccodes.InvalidArgument},
		"many kinds":          {func(r *driverpb.Registration) { r.MigratedKinds = make([]string, 65) }, grpccodes.InvalidArgument},
		"long migrated kind":  {func(r *driverpb.Registration) { r.MigratedKinds = []string{strings.Repeat("k", 254)} }, grpccodes.InvalidArgument},
		"no operations":       {func(r *driverpb.Registration) { r.Operations = nil }, grpccodes.InvalidArgument},
		"no deletion":         {func(r *driverpb.Registration) { r.Operations = r.Operations[:1] }, grpccodes.InvalidArgument},
		"no API version":      {func(r *driverpb.Registration) { r.ApiVersion = "" }, grpccodes.FailedPrecondition},
		"later API version":   {func(r *driverpb.Registration) { r.ApiVersion = "machine.sapcloud.io/v2" }, grpccodes.FailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			m := newManager(t)
			r := m.raw()
			r.register(registration(tt.change))
			wantEnd(t, r.ended(), tt.want)
			if len(m.added) != 0 {
				t.Error("the plug-in was registered anyway")
			}
		})
	}
}

func TestStream_MessageOutOfOrder(t *testing.T) {
	for name, first := range map[string]*driverpb.DriverSide{
		"no content": {},
		"a result":   {Content: &driverpb.DriverSide_Result{Result: &driverpb.OperationResult{OperationId: "x"}}},
	} {
		t.Run(name+" first", func(t *testing.T) {
			r := newManager(t).raw()
			r.send(first)
			wantEnd(t, r.ended(), grpccodes.InvalidArgument)
		})
	}
	for name, later := range map[string]*driverpb.DriverSide{
		"no content":       {},
		"one registration": {Content: &driverpb.DriverSide_Registration{Registration: registration()}},
	} {
		t.Run(name+" later", func(t *testing.T) {
			m := newManager(t)
			r := m.raw()
			r.registered(registration())
			r.send(later)
			wantEnd(t, r.ended(), grpccodes.InvalidArgument)
			_, err := (<-m.added).GetMachineStatus(t.Context(), statusRequest("one"))
			wantCode(t, err, codes.Unavailable)
		})
	}
}

// bytesCodec sends bytes unchanged.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) ([]byte, error) {
	if raw, ok := v.(*[]byte); ok {
		return *raw, nil
	}
	return nil, errors.New("not a byte slice")
}
func (bytesCodec) Unmarshal([]byte, any) error { return nil }
func (bytesCodec) Name() string                { return "proto" }

func TestStream_Garbage(t *testing.T) {
	m := newManager(t)
	good := m.raw()
	good.registered(registration(func(r *driverpb.Registration) { r.Kind = "good" }))
	d := <-m.added
	for name, garbage := range map[string][]byte{
		"no protobuf": []byte("\xff\xff\xff\xff garbage"),
		"huge":        make([]byte, 17<<20),
	} {
		t.Run(name, func(t *testing.T) {
			bad := m.raw(grpc.WithDefaultCallOptions(grpc.ForceCodec(bytesCodec{})))
			if err := bad.stream.SendMsg(&garbage); err != nil && len(garbage) < 1<<20 {
				t.Fatal(err)
			}
			var response []byte
			if err := bad.stream.RecvMsg(&response); err == nil {
				t.Error("the stream continues")
			}
		})
	}
	done := ask(soon(t), d, "one")
	good.respond(good.receive().GetOperation())
	wantCode(t, (<-done).err, codes.OK)
}

func TestResult_TooLargeFailsRunningOperations(t *testing.T) {
	m := newManager(t)
	r := m.raw()
	r.registered(registration())
	done := ask(soon(t), <-m.added, "one")
	op := r.receive().GetOperation()
	_ = r.stream.Send(&driverpb.DriverSide{Content: &driverpb.DriverSide_Result{Result: &driverpb.OperationResult{
		OperationId: op.GetOperationId(), Object: make([]byte, 17<<20),
	}}})
	wantEnd(t, r.ended(), grpccodes.ResourceExhausted)
	wantCode(t, (<-done).err, codes.Unavailable)
}

// TestResult_TooManyFieldsFailsRunningOperations: a short result with many empty messages is not decoded.
func TestResult_TooManyFieldsFailsRunningOperations(t *testing.T) {
	m := newManager(t)
	r := m.raw()
	r.registered(registration())
	done := ask(soon(t), <-m.added, "one")
	op := r.receive().GetOperation()
	_ = r.stream.Send(&driverpb.DriverSide{Content: &driverpb.DriverSide_Result{Result: &driverpb.OperationResult{
		OperationId: op.GetOperationId(), Addresses: slices.Repeat([]*driverpb.Address{{}}, driverpb.MaxFields),
	}}})
	wantCode(t, (<-done).err, codes.Unavailable)
	wantEnd(t, r.ended(), grpccodes.Internal)
}

func TestResult_Unexpected(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*driverpb.OperationResult)
		want   codes.Code
	}{
		"for another machine":    {func(r *driverpb.OperationResult) { r.MachineName = "two" }, codes.Internal},
		"for no machine":         {func(r *driverpb.OperationResult) { r.MachineName = "" }, codes.Internal},
		"of another operation":   {func(r *driverpb.OperationResult) { r.OperationType = driverpb.OperationType_OT_DELETE_MACHINE }, codes.Internal},
		"of an unknown type":     {func(r *driverpb.OperationResult) { r.OperationType = 77 }, codes.Internal},
		"with an unknown code":   {func(r *driverpb.OperationResult) { r.Code = 1 << 31 }, codes.Unknown},
		"with NotFound":          {func(r *driverpb.OperationResult) { r.Code = 5 }, codes.NotFound},
		"with a message, but OK": {func(r *driverpb.OperationResult) { r.Message = "failed" }, codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			m := newManager(t)
			r := m.raw()
			r.registered(registration())
			d := <-m.added
			done := ask(soon(t), d, "one")
			r.respond(r.receive().GetOperation(), tt.change)
			wantCode(t, (<-done).err, tt.want)

			// The next operation is not affected.
			done = ask(soon(t), d, "one")
			r.respond(r.receive().GetOperation())
			wantCode(t, (<-done).err, codes.OK)
		})
	}
}

func TestPlaceMachine_InvalidSpecification(t *testing.T) {
	m := newManager(t)
	r := m.raw()
	r.registered(registration(func(r *driverpb.Registration) {
		r.Operations = append(r.Operations, driverpb.OperationType_OT_PLACE_MACHINE)
	}))
	d := <-m.added
	for name, tt := range map[string]struct {
		object []byte
		want   codes.Code
	}{
		"nothing": {nil, codes.Internal},
		"garbage": {[]byte("\xff{"), codes.Internal},
		"null":    {[]byte("null"), codes.Internal},
		"a list":  {[]byte(`["zone"]`), codes.Internal},
		"a text":  {[]byte(`"zone"`), codes.Internal},
		"huge":    {fmt.Appendf(nil, `{"zone":%q}`, strings.Repeat("a", 1<<20)), codes.Internal},
		"nested":  {[]byte(`{"zone":{"name":"a"}}`), codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			done := make(chan error, 1)
			go func() {
				_, err := d.PlaceMachine(soon(t), &driver.PlaceMachineRequest{MachineClass: fixture.MachineClass(), FailureDomain: name})
				done <- err
			}()
			r.respond(r.receive().GetOperation(), func(result *driverpb.OperationResult) { result.Object = tt.object })
			wantCode(t, <-done, tt.want)
		})
	}
}

func TestResult_UnrequestedIsIgnored(t *testing.T) {
	m := newManager(t)
	r := m.raw()
	r.registered(registration())
	d := <-m.added
	r.respond(&driverpb.Operation{OperationId: "unknown"})
	done := ask(soon(t), d, "one")
	op := r.receive().GetOperation()
	r.respond(op)
	r.respond(op, func(result *driverpb.OperationResult) { result.ProviderId = "raw:///2" }) // a duplicate
	if got := <-done; got.err != nil || got.resp.ProviderID != "raw:///1" {
		t.Errorf("got %+v", got)
	}
	done = ask(soon(t), d, "two")
	r.respond(r.receive().GetOperation())
	wantCode(t, (<-done).err, codes.OK)
}

func TestResult_FloodIsCut(t *testing.T) {
	r := newManager(t).raw()
	r.registered(registration())
	for range 20_000 {
		if r.stream.Send(&driverpb.DriverSide{Content: &driverpb.DriverSide_Result{Result: &driverpb.OperationResult{OperationId: "x"}}}) != nil {
			break
		}
	}
	wantEnd(t, r.ended(), grpccodes.ResourceExhausted)
}

func TestDriver_NeverResponds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // with fake time, no deadline passes before the driver has the operation
		m := newManager(t)
		r := m.raw()
		r.registered(registration()) // for two concurrent operations
		d := <-m.added
		short := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			t.Cleanup(cancel)
			return ctx
		}
		_, err := d.GetMachineStatus(short(), statusRequest("one"))
		wantCode(t, err, codes.Unavailable)
		op := r.receive().GetOperation()
		if cancel := r.receive().GetCancel(); cancel.GetOperationId() != op.GetOperationId() {
			t.Errorf("cancel of operation %s expected, got %v", op.GetOperationId(), cancel)
		}
		if op.GetTimeout().AsDuration() > 10*time.Millisecond {
			t.Errorf("the driver was given %v", op.GetTimeout().AsDuration())
		}
		// Operations without a result count as running. The driver is disconnected when it has no other
		// operations.
		_, err = d.GetMachineStatus(short(), statusRequest("two"))
		wantCode(t, err, codes.Unavailable)
		wantEnd(t, r.ended(), grpccodes.ResourceExhausted)
		_, err = d.GetMachineStatus(soon(t), statusRequest("three"))
		wantCode(t, err, codes.Unavailable)
	})
}

func TestDriver_NeverReads(t *testing.T) {
	m := newManager(t)
	r := m.raw()
	r.registered(registration(func(r *driverpb.Registration) { r.MaxOperations = 20 }))
	d := <-m.added
	ctx, cancel := context.WithCancel(t.Context())
	var all []<-chan outcome
	for range 20 { // each much larger than the window of a stream
		request := statusRequest("one")
		request.Machine.Annotations = map[string]string{"long": strings.Repeat("x", 1<<20)}
		done := make(chan outcome, 1)
		go func() {
			resp, err := d.GetMachineStatus(ctx, request)
			done <- outcome{resp, err}
		}()
		all = append(all, done)
	}
	other := m.raw()
	other.register(registration()) // the same instance, which replaces the blocked stream
	if other.receive().GetRegistered() == nil {
		t.Error("the driver could not register again")
	}
	cancel()
	for _, done := range all {
		select {
		case got := <-done: // operations that were not sent yet may run on the new stream
			if got.err == nil {
				t.Errorf("a call succeeded with %+v", got.resp)
			}
		case <-soon(t).Done():
			t.Fatal("a call hangs")
		}
	}
}

func TestRegistration_SecondDriverOfKindIsRejected(t *testing.T) {
	m := newManager(t)
	first := m.raw()
	first.registered(registration())
	d := <-m.added
	second := m.raw()
	second.register(registration(func(r *driverpb.Registration) { r.Kind, r.Instance = "FAKE", "fedcba9876543210" }))
	wantEnd(t, second.ended(), grpccodes.AlreadyExists)

	// The first driver is not affected, and another may register when it is gone.
	done := ask(soon(t), d, "one")
	first.respond(first.receive().GetOperation())
	wantCode(t, (<-done).err, codes.OK)
	if err := first.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	_ = first.ended()
	m.serve(fake.New(fake.Config{}), m.options("fake"))
	for soon := soon(t); soon.Err() == nil; {
		_, err := d.GetMachineStatus(soon, statusRequest("one"))
		if codes.NotFound == codeOf(err) {
			return
		}
		wantCode(t, err, codes.Unavailable)
	}
	t.Error("no other driver could register")
}

func TestRegistration_BuiltInKindIsRejected(t *testing.T) {
	m := newManager(t)
	m.refuse = errors.New("it is compiled in")
	r := m.raw()
	r.register(registration())
	err := r.ended()
	wantEnd(t, err, grpccodes.AlreadyExists)
	if !strings.Contains(err.Error(), "it is compiled in") {
		t.Errorf("the reason is missing: %v", err)
	}
}

func TestServe_ReturnsAfterRejection(t *testing.T) {
	m := newManager(t)
	err := plugin.Serve(soon(t), fake.New(fake.Config{}), m.options("not a kind"))
	if err == nil || !strings.Contains(err.Error(), "invalid driver name") {
		t.Errorf("the plug-in returned %v", err)
	}
}
