package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/support/tier"
)

// vulnerability is a vulnerability of a function of the standard library, in the format of the database.
const vulnerability = `{"schema_version": "1.3.1", "id": "GO-2026-0001", "modified": "2026-01-02T00:00:00Z", "published": "2026-01-01T00:00:00Z",
	"summary": "an example", "details": "an example", "database_specific": {"url": "https://example.org/GO-2026-0001"}, "affected": [{"package": {"name": "stdlib", "ecosystem": "Go"},
	"ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}]}],
	"ecosystem_specific": {"imports": [{"path": "strings", "symbols": ["ToUpper"]}]}}]}`

// TestVulncheck_FailsOnVulnerableCall checks that a call of a vulnerable function fails the check, and that an unreachable database is
// reported but not a failure.
func TestVulncheck_FailsOnVulnerableCall(t *testing.T) {
	tier.All(t)
	module := t.TempDir()
	write(t, filepath.Join(module, "go.mod"), "module example.org/program\n\ngo 1.26.0\n")
	write(t, filepath.Join(module, "main.go"), "package main\n\nimport \"strings\"\n\nfunc main() { println(strings.ToUpper(\"a\")) }\n")
	known, empty := t.TempDir(), t.TempDir()
	for _, database := range []string{known, empty} {
		write(t, filepath.Join(database, "index", "db.json"), `{"modified": "2026-01-02T00:00:00Z"}`)
		write(t, filepath.Join(database, "index", "modules.json"), `[]`)
	}
	write(t, filepath.Join(known, "index", "modules.json"), `[{"path": "stdlib", "vulns": [{"id": "GO-2026-0001", "modified": "2026-01-02T00:00:00Z"}]}]`)
	write(t, filepath.Join(known, "ID", "GO-2026-0001.json"), vulnerability)
	for name, tc := range map[string]struct {
		database string
		fails    bool
		wantText string
	}{
		"vulnerable": {"file://" + known, true, "Your code is affected by 1 vulnerability"},
		"clean":      {"file://" + empty, false, "No vulnerabilities found"},
		"offline":    {"http://127.0.0.1:1", false, "cannot reach http://127.0.0.1:1, so nothing was checked"},
	} {
		t.Run(name, func(t *testing.T) {
			command := exec.CommandContext(t.Context(), filepath.Join(root(t), "hack", "vulncheck.sh"), module)
			command.Dir = root(t)
			command.Env = append(os.Environ(), "GOVULNDB="+tc.database, "GOFLAGS=-buildvcs=false", "GOWORK=off")
			out, err := command.CombinedOutput()
			if (err != nil) != tc.fails || !strings.Contains(string(out), tc.wantText) {
				t.Errorf("%v, want failure: %t, and %q:\n%s", err, tc.fails, tc.wantText, out)
			}
		})
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
