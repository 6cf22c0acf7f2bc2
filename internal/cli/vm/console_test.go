package vm

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A user who follows the output sees why it has ended; a script that reads it once sees only the output.
func TestLogs_FollowReportsEnd(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/namespaces/shop/virtualmachines/web/log") {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, "login:\n")
	}))
	defer server.Close()
	config := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a}}]\nclusters: [{name: a, cluster: {server: '" + server.URL + "'}}]\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for follow, want := range map[string]string{
		"--follow=false": "",
		"--follow":       "The output ended because virtual machine web has terminated or left its host. If it still exists, run the command again.\n",
	} {
		var out, messages bytes.Buffer
		cmd := newLogs()
		cmd.SetArgs([]string{"web", "-n", "shop", "--kubeconfig", config, follow})
		cmd.SetOut(&out)
		cmd.SetErr(&messages)
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		if out.String() != "login:\n" || messages.String() != want {
			t.Errorf("%s: printed %q and %q, want %q", follow, out.String(), messages.String(), want)
		}
	}
}
