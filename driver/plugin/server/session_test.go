package server

import (
	"testing"

	driverpb "github.com/millwright-dev/millwright/proto/driver"
)

// TestCancelsThatNobodyReads: a driver that answers what is cancelled, and never reads that it is, is cut;
// nobody waits for it.
func TestCancelsThatNobodyReads(t *testing.T) {
	s := newSession(&driverpb.Registration{Kind: "deaf", MaxOperations: 2})
	for range 2 * cap(s.cancels) {
		op := &operation{message: &driverpb.Operation{OperationId: "one"}, answer: make(chan *driverpb.OperationResult, 1)}
		s.slots <- struct{}{}
		s.begin(op)
		s.abandon("one")
		if !s.finish(&driverpb.OperationResult{OperationId: "one"}) {
			t.Fatal("the operation is not known")
		}
	}
	select {
	case <-s.ended:
	default:
		t.Error("the session goes on")
	}
}
