package vmcontroller

import (
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
)

// TestVMController_RejectsInvalidCertificateFlags checks that inconsistent flags and unusable files stop the controller with an error
// that names them, before it contacts a cluster.
func TestVMController_RejectsInvalidCertificateFlags(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.crt")
	for name, test := range map[string]struct {
		args     []string
		wantText string
	}{
		"one file":               {[]string{"--identity-cert-file=a"}, "--identity-private-key-file"},
		"two authorities":        {[]string{"--identity-cert-file=a", "--identity-private-key-file=b", "--identity-authority-file=c", "--authority-cert-file=d", "--authority-private-key-file=e"}, "--authority-cert-file: cannot be used with --identity-cert-file"},
		"a driver without files": {[]string{"--hypervisor-identity-driver=csi.example.com"}, "requires --identity-cert-file"},
		"attributes, no driver":  {[]string{"--hypervisor-identity-attribute=a=b"}, "requires --hypervisor-identity-driver"},
		"no attribute":           {[]string{"--hypervisor-identity-attribute=a"}, `"a" is not NAME=VALUE`},
	} {
		t.Run(name, func(t *testing.T) {
			command := New()
			command.SetArgs(append(test.args, "--hypervisor-image=test", "--advertise-address=192.0.2.1"))
			command.SetOut(io.Discard)
			command.SetErr(io.Discard)
			if err := command.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), test.wantText) {
				t.Errorf("got error %v, want %q", err, test.wantText)
			}
		})
	}
	flags := &identityFlags{}
	flags.files.Certificate, flags.files.Key, flags.files.Authority = missing, missing, missing
	if _, err := flags.credentials(logr.Discard()); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("files that are missing: %v", err)
	}
}
