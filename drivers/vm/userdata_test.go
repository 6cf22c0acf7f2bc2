package vm_test

import (
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/drivers/vm"
)

// TestUserDataThatIsTooLarge: nothing is made, and other user data may do.
func TestUserDataThatIsTooLarge(t *testing.T) {
	w := newWorld(t, vm.Options{})
	w.secret.Data["userData"] = []byte(strings.Repeat("x", 1<<20+1))
	_, err := w.create(t.Context(), "m")
	if code := status.Code(err); code != codes.FailedPrecondition {
		t.Errorf("answers %v: %v", code, err)
	}
	if vms := w.vms(); len(vms) != 0 {
		t.Errorf("made %d VMs", len(vms))
	}
}
