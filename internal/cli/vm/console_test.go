package vm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

// A user leaves with either sequence, in one piece or key by key. Everything else reaches the guest.
func TestConsole_Escapes(t *testing.T) {
	for name, test := range map[string]struct {
		typed, want string
		leaves      bool
	}{
		"text":                       {"ls ~/bin\r", "ls ~/bin\r", false},
		"Ctrl-]":                     {"ls\x1d more", "ls", true},
		"~. at the beginning":        {"~.", "", true},
		"~. on a new line":           {"ls\r~.more", "ls\r", true},
		"~. after a line feed":       {"ls\n~.", "ls\n", true},
		"~. within a line":           {"a~.\r", "a~.\r", false},
		"~~ at the beginning":        {"~~.\r", "~.\r", false},
		"~ and text":                 {"~/bin/x\r", "~/bin/x\r", false},
		"~ and a new line":           {"~\r~.", "~\r", true},
		"~ and Ctrl-]":               {"~\x1d", "", true},
		"~~ and ~. on the same line": {"~~~.\r", "~~.\r", false},
		"~ and text, then ~.":        {"~x\r~.", "~x\r", true},
	} {
		for _, size := range []int{1, len(test.typed)} {
			keys := escapes{lineStart: true}
			var got []byte
			leaves := false
			for rest := []byte(test.typed); len(rest) > 0 && !leaves; rest = rest[min(size, len(rest)):] {
				var send []byte
				send, leaves = keys.filter(rest[:min(size, len(rest))])
				got = append(got, send...)
			}
			if string(got) != test.want || leaves != test.leaves {
				t.Errorf("%s, %d keys at a time: sent %q and left: %t, want %q and %t", name, size, got, leaves, test.want, test.leaves)
			}
		}
	}
}

// With a timeout, the command waits for a VM that does not run yet. Other errors are not retried.
func TestConsole_Timeout(t *testing.T) {
	vms := schema.GroupResource{Resource: "virtualmachines"}
	stopped := apierrors.NewConflict(vms, "web", errors.New("virtual machine web is not running"))
	away := apierrors.NewServiceUnavailable("starting")
	denied := apierrors.NewForbidden(vms, "web", errors.New("no"))
	for name, test := range map[string]struct {
		timeout  time.Duration
		failures []error
		want     string
		after    time.Duration
	}{
		"without a timeout":   {0, []error{stopped}, "is not running", 0},
		"it runs":             {time.Minute, nil, "", 0},
		"it runs later":       {time.Minute, []error{stopped, away, stopped}, "", 3 * consolePace},
		"no permission":       {time.Minute, []error{stopped, denied}, "forbidden", consolePace},
		"it does not run":     {5*time.Second + time.Millisecond, []error{stopped, away, stopped, stopped, stopped, stopped, stopped, stopped}, "no connection within 5.001s: ", 5*time.Second + time.Millisecond},
		"it does not respond": {time.Second, []error{context.DeadlineExceeded}, "no connection within 1s: ", time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			failures, begun := test.failures, time.Now()
			conn, err := openWithin(t.Context(), test.timeout, func(ctx context.Context) (*websocket.Conn, error) {
				if len(failures) == 0 {
					return &websocket.Conn{}, nil
				}
				failure := failures[0]
				failures = failures[1:]
				if errors.Is(failure, context.DeadlineExceeded) {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return nil, failure
			})
			failed := err != nil
			if failed != (test.want != "") || failed && !strings.Contains(err.Error(), test.want) || failed == (conn != nil) {
				t.Errorf("%s: %v, %v", name, conn, err)
			}
			if took := time.Since(begun); took != test.after {
				t.Errorf("%s: took %s, want %s", name, took, test.after)
			}
		})
	}
}
