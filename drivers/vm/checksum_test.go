package vm

import (
	"os"
	"strings"
	"testing"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// The marker of a field cannot refer to a constant, so the pattern could differ from that of the driver.
func TestChecksumPattern_OfCustomResourceDefinition(t *testing.T) {
	crd, err := os.ReadFile("../../config/crd/vm.metropolis.monogon.dev_virtualmachines.yaml")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Count(string(crd), "checksum:\n")
	if patterns := strings.Count(string(crd), "pattern: "+vmv1alpha1.ChecksumPattern+"\n"); fields == 0 || patterns != fields {
		t.Errorf("%d of %d checksums have the pattern", patterns, fields)
	}
}
