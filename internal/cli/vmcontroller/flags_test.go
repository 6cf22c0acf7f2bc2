package vmcontroller

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestVMController_RejectsUnsafeFlags checks that the controller does not start for VMs in its own namespace, which has
// its keys, or with unusable references of images. The controller does not contact the cluster before that.
func TestVMController_RejectsUnsafeFlags(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","namespace":"from-kubeconfig"}}],"clusters":[{"name":"c","cluster":{"server":"https://192.0.2.1"}}]}`
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args     []string
		wantText string
	}{
		"own namespace":             {[]string{"--namespace=system", "--vm-namespaces=vms,system"}, "--vm-namespaces: system is the namespace of the VM controller"},
		"own default namespace":     {[]string{"--vm-namespaces=from-kubeconfig"}, "--vm-namespaces: from-kubeconfig is the namespace of the VM controller"},
		"image with a space":        {[]string{"--hypervisor-images=a:1,b c"}, `--hypervisor-images: "b c" is not a container image`},
		"unknown overlay":           {[]string{"--vm-overlay=all"}, `--vm-overlay: unknown value "all"; expected namespace, installation or off`},
		"no port for overlay":       {[]string{"--vm-overlay-port=0"}, "--vm-overlay-port: must not be 0"},
		"small MTU of overlay":      {[]string{"--vm-overlay-mtu=1000"}, "--vm-overlay-mtu: 1000 is not between 1280 and 1500"},
		"no downtime":               {[]string{"--vm-migration-downtime-limit=0"}, "--vm-migration-downtime-limit: 0s is not between 1ms and 20s"},
		"long downtime":             {[]string{"--vm-migration-downtime-limit=21s"}, "--vm-migration-downtime-limit: 21s is not between 1ms and 20s"},
		"no time to migrate":        {[]string{"--vm-migration-completion-timeout-per-gib=0"}, "--vm-migration-completion-timeout-per-gib: 0s is not between 1s and 1h0m0s"},
		"unknown policy":            {[]string{"--vm-migration-completion-timeout-policy=Stop"}, `--vm-migration-completion-timeout-policy: unknown value "Stop"; expected Pause or Cancel`},
		"network without namespace": {[]string{"--network-attachments=networks/a,b"}, `--network-attachments: "b" is not NAMESPACE/NAME`},
		"network with two slashes":  {[]string{"--network-attachments=a/b/c"}, `--network-attachments: "a/b/c" is not NAMESPACE/NAME`},
		"empty image":               {[]string{"--hypervisor-images=a:1,"}, `--hypervisor-images: "" is not a container image`},
	} {
		t.Run(name, func(t *testing.T) {
			command := New()
			command.SetArgs(append(test.args, "--kubeconfig="+kubeconfig, "--hypervisor-image=test", "--advertise-address=192.0.2.1"))
			command.SetOut(io.Discard)
			command.SetErr(io.Discard)
			if err := command.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), test.wantText) {
				t.Errorf("got error %v, want %q", err, test.wantText)
			}
		})
	}
}
