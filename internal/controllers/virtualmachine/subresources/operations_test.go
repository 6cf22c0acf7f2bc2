package subresources

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
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

// TestSubresources_SanitizeCloseMessages checks the same for the message with which a console is closed.
func TestSubresources_SanitizeCloseMessages(t *testing.T) {
	text := "no guest\x1b]0;mine\a\n" + strings.Repeat("\u009b", 1<<20)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		socket, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer socket.Close()
		closeSocket(socket, status.Error(codes.Internal, text))
	}))
	defer server.Close()
	client, response, err := websocket.DefaultDialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(server.URL, "http"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_ = response.Body.Close()
	_, _, err = client.ReadMessage()
	var closed *websocket.CloseError
	if !errors.As(err, &closed) || !strings.HasPrefix(closed.Text, "no guest") || strings.ContainsFunc(closed.Text, func(r rune) bool { return r < ' ' || r == '\u009b' }) {
		t.Errorf("the client gets %q", err)
	}
}
