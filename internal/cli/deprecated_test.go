package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestInstance_FormerNamesWork checks that the former names of the commands print the same, and a line with the new name
// to standard error, and that no help lists them.
func TestInstance_FormerNamesWork(t *testing.T) {
	class := filepath.Join(t.TempDir(), "class.yaml")
	text := "apiVersion: machine.sapcloud.io/v1alpha1\nkind: MachineClass\nmetadata: {name: small}\nprovider: sim\n" +
		"providerSpec: {tags: {kubernetes.io/cluster/c: \"1\"}}\n"
	if err := os.WriteFile(class, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var outputs []string
	for _, command := range []string{"instance", "machine"} {
		var stdout, stderr bytes.Buffer
		if status := Main(Program{Args: []string{command, "list", "--class", class, "-o", "json"}, Stdout: &stdout, Stderr: &stderr}); status != 0 {
			t.Fatalf("%s: exit status %d, %s", command, status, &stderr)
		}
		outputs = append(outputs, stdout.String())
		const want = `"millwright machine list" is deprecated and will be removed after the next release; use "millwright instance list"` + "\n"
		if former := command == "machine"; former != (stderr.String() == want) {
			t.Errorf("%s: standard error is %q", command, &stderr)
		}
	}
	if outputs[0] != outputs[1] || outputs[0] == "" {
		t.Errorf("got %q and %q", outputs[0], outputs[1])
	}
	if help := printed(t, "machine", "--help"); strings.Contains(help, "create") || !strings.Contains(help, "preserve") {
		t.Errorf("help:\n%s", help)
	}
}

// TestExplain_IsAlsoDiagnose checks the other name of "explain", which "kubectl explain" does not resemble.
func TestExplain_IsAlsoDiagnose(t *testing.T) {
	if explain, diagnose := printed(t, "explain", "machine", "--help"), printed(t, "diagnose", "machine", "--help"); explain != diagnose {
		t.Errorf("got %q and %q", explain, diagnose)
	}
}
