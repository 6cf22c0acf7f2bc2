package seed

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/internal/placeholder"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// Each renderer of the distribution's cloud-init sets both addresses and both default routes.
func TestSeed_NetworkIsRenderedByCloudInit(t *testing.T) {
	tier.All(t)
	if _, err := exec.LookPath("cloud-init"); err != nil {
		t.Skip("cloud-init is not installed; run make cloud-init")
	}
	image, err := Image(content())
	if err != nil {
		t.Fatal(err)
	}
	_, files := read(t, image)
	config := filepath.Join(t.TempDir(), "network-config")
	if err := os.WriteFile(config, files["network-config"], 0o600); err != nil {
		t.Fatal(err)
	}
	for renderer, test := range map[string]struct {
		distribution string
		want         []string
	}{
		"networkd": {"photon", []string{
			"Address=10.77.0.16/16\n", "Address=fd77::16/64\n", "[Route]\nGateway=10.77.0.2\n", "[Route]\nGateway=fd77::2\n", "DNS=10.77.0.3\n",
		}},
		"eni": {"debian", []string{
			"iface eth0 inet static\n", "address 10.77.0.16/16\n", "gateway 10.77.0.2\n",
			"iface eth0 inet6 static\n", "address fd77::16/64\n", "gateway fd77::2\n",
		}},
		"sysconfig": {"rhel", []string{
			"IPADDR=10.77.0.16\n", "NETMASK=255.255.0.0\n", "\nGATEWAY=10.77.0.2\n", "IPV6ADDR=fd77::16/64\n", "IPV6_DEFAULTGW=fd77::2\n",
		}},
		"network-manager": {"rhel", []string{"address1=10.77.0.16/16\ngateway=10.77.0.2\n", "address1=fd77::16/64\ngateway=fd77::2\n"}},
		"netplan":         {"ubuntu", []string{"- 10.77.0.16/16\n", "- fd77::16/64\n", "gateway4: 10.77.0.2\n", "gateway6: fd77::2\n"}},
	} {
		t.Run(renderer, func(t *testing.T) {
			got := rendered(t, config, renderer, test.distribution)
			for _, want := range test.want {
				if !strings.Contains(got, want) {
					t.Errorf("%q is missing in:\n%s", want, got)
				}
			}
		})
	}
}

// rendered returns all files that a renderer writes.
func rendered(t *testing.T, config, renderer, distribution string) string {
	t.Helper()
	directory := t.TempDir()
	command := exec.CommandContext(t.Context(), "cloud-init", "devel", "net-convert", "--network-data", config, "--kind", "yaml",
		"--directory", directory, "--distro", distribution, "--output-kind", renderer, "--mac", "eth0,02:00:00:00:00:07")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", command, err, out)
	}
	var all strings.Builder
	err := filepath.WalkDir(directory, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

// The example is valid for cloud-init, once its placeholders are replaced.
func TestSeed_ExampleIsValidForCloudInit(t *testing.T) {
	tier.All(t)
	if _, err := exec.LookPath("cloud-init"); err != nil {
		t.Skip("cloud-init is not installed; run make cloud-init")
	}
	example, err := os.ReadFile("../../../../examples/own-image/user-data")
	if err != nil {
		t.Fatal(err)
	}
	filled := strings.NewReplacer("CA_DATA", "Y2E=", placeholder.MachineName, "own-1", placeholder.Token, "abcdef.0123456789abcdef",
		placeholder.ProviderID, "millwright:///default/6b0ff0b6-6a5f-4b8b-9c0a-0d3e5a1f7c21").Replace(string(example))
	if strings.Contains(filled, "<<") {
		t.Errorf("unknown placeholders in:\n%s", filled)
	}
	path := filepath.Join(t.TempDir(), "user-data")
	if err := os.WriteFile(path, []byte(filled), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "cloud-init", "schema", "--config-file", path).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
