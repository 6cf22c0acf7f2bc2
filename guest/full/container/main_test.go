package main

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// TestGet_UsesServiceAccount: https requests use the token of the Pod and trust the cluster's certificate
// authority.
func TestGet_UsesServiceAccount(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Get("Authorization"))
	}))
	defer server.Close()
	account := t.TempDir()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, content := range map[string][]byte{"token": []byte("secret"), "ca.crt": authority} {
		if err := os.WriteFile(filepath.Join(account, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := get(t.Context(), server.URL, account, &out); err != nil || out.String() != "Bearer secret" {
		t.Errorf("got %q, %v", &out, err)
	}

	if err := os.WriteFile(filepath.Join(account, "ca.crt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var unknown x509.UnknownAuthorityError
	if err := get(t.Context(), server.URL, account, &out); !errors.As(err, &unknown) {
		t.Errorf("untrusted server: got error %v", err)
	}
	if err := get(t.Context(), server.URL, t.TempDir(), &out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without an account: got error %v", err)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"lookup"}, {"lookup", "a", "b"}, {"other"}} {
		if err := run(t.Context(), args, &bytes.Buffer{}); !errors.Is(err, errUsage) {
			t.Errorf("%v: got error %v", args, err)
		}
	}
}
