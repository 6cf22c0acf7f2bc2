package plugin

import (
	"context"
	"encoding/json"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	driverpb "github.com/millwright-dev/millwright/proto/driver"
)

// fixedManager is a manager that returns the same response to each request for a class or a Secret.
type fixedManager struct {
	driverpb.InfraClient
	class []byte
}

func (a fixedManager) GetMachineClass(context.Context, *driverpb.MachineClassMeta, ...grpc.CallOption) (*driverpb.MachineClass, error) {
	return &driverpb.MachineClass{Object: a.class}, nil
}

func (a fixedManager) GetSecret(context.Context, *driverpb.SecretMeta, ...grpc.CallOption) (*driverpb.Secret, error) {
	return &driverpb.Secret{Data: map[string][]byte{"userData": a.class}}, nil
}

// FuzzPlugin_Operations: whatever a manager sends, the process keeps running, and each operation gets one response with
// its ID, type and machine.
func FuzzPlugin_Operations(f *testing.F) {
	machine, err := json.Marshal(map[string]any{"metadata": map[string]any{"namespace": "ns", "name": "one"}})
	if err != nil {
		f.Fatal(err)
	}
	for kind := range driverpb.OperationType_name {
		encoded, err := proto.Marshal(&driverpb.MCMside{Content: &driverpb.MCMside_Operation{Operation: &driverpb.Operation{
			OperationId: "a", OperationType: driverpb.OperationType(kind), Machine: machine, MachineName: "one",
			MachineClass: &driverpb.MachineClassMeta{Name: "class"}, Secret: &driverpb.SecretMeta{Name: "class"},
			VolumeSpecs: [][]byte{[]byte("{}")}, ProviderSpecificMachineClass: []byte(`{"kind":"AWSMachineClass"}`), FailureDomain: "a",
		}}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(encoded, []byte("{}"))
		f.Add(encoded, []byte("null"))
	}
	f.Add([]byte("\xff\xff garbage"), []byte{})
	f.Fuzz(func(t *testing.T, frame, class []byte) {
		message := &driverpb.MCMside{}
		if proto.Unmarshal(frame, message) != nil {
			return // gRPC closes the stream
		}
		op := message.GetOperation()
		s := newFuzzSession(t, class)
		s.cancel(message.GetCancel().GetOperationId())
		if op == nil {
			return
		}
		s.begin(t.Context(), op)
		s.begin(t.Context(), op) // a duplicate of a running operation is ignored
		result := <-s.results
		if result.GetOperationId() != op.GetOperationId() || result.GetOperationType() != op.GetOperationType() || result.GetMachineName() != op.GetMachineName() {
			t.Errorf("got response %[2]v to %[1]v", op, result)
		}
		if int(result.GetCode()) >= len(codes.All()) {
			t.Errorf("got unknown code %d", result.GetCode())
		}
		if _, err := proto.Marshal(result); err != nil {
			t.Errorf("response cannot be encoded: %v", err)
		}
	})
}

// newFuzzSession returns a registered session. When the test completes, no operation may still be running.
func newFuzzSession(t *testing.T, class []byte) *session {
	over := make(chan struct{})
	s := &session{
		driver: fake.New(fake.Config{}), options: Options{Kind: "fake"}, all: &sync.WaitGroup{}, cache: newCache(fixedManager{class: class}),
		running: map[string]context.CancelFunc{}, results: make(chan *driverpb.OperationResult), over: over,
	}
	t.Cleanup(func() {
		close(over)
		s.all.Wait()
		if len(s.running) != 0 {
			t.Errorf("%d operations are still running", len(s.running))
		}
	})
	return s
}
