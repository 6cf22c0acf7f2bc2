package expectations_test

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	var memory expectations.Memory[int]
	a, b := client.ObjectKey{Name: "a"}, client.ObjectKey{Name: "b"}
	if memory.Find(a) != nil {
		t.Error("a value exists before one was stored")
	}
	*memory.Of(a) = 1
	if got := memory.Find(a); got == nil || *got != 1 || *memory.Of(a) != 1 {
		t.Errorf("got %v, want the stored value", got)
	}
	if *memory.Of(b) != 0 {
		t.Error("objects share a value")
	}
	memory.Forget(a)
	memory.Forget(client.ObjectKey{Name: "unknown"})
	if memory.Find(a) != nil || *memory.Of(a) != 0 || memory.Find(b) == nil {
		t.Error("Forget does not drop just the value of its object")
	}
}
