package subresources

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// TestSubresources_SanitizeHypervisorTexts checks that messages of a compromised hypervisor are sanitized, because kubectl prints them
// as they are.
func TestSubresources_SanitizeHypervisorTexts(t *testing.T) {
	text := "\x1b]0;mine\a\nError: log in at https://example.com " + strings.Repeat("\x9b", 1<<20) + "\xff"
	for _, code := range []codes.Code{codes.FailedPrecondition, codes.Unavailable, codes.Internal, codes.Unknown} {
		var converted apierrors.APIStatus
		if !errors.As((call{vm: &v1alpha1.VirtualMachine{}}).failure(status.Error(code, text)), &converted) {
			t.Fatalf("%s: no status", code)
		}
		message := converted.Status().Message
		if len(message) > 2*textLimit || strings.ContainsFunc(message, func(r rune) bool { return r < ' ' || r == '\x9b' }) {
			t.Errorf("%s: %d bytes: %.100q", code, len(message), message)
		}
		if !strings.Contains(message, "Error: log in") {
			t.Errorf("%s: the text is missing: %.100q", code, message)
		}
	}
}
