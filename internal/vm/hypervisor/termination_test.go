package hypervisor_test

import (
	"encoding/json"
	"os"
	"testing"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

func readTermination(t *testing.T, path string) (termination vmpb.Termination) {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	if len(text) > 4096 {
		t.Errorf("%d bytes exceed the limit of Kubernetes", len(text))
	}
	must(t, json.Unmarshal(text, &termination))
	return termination
}
