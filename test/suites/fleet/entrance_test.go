package fleet

import (
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"sync/atomic"

	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/serverfault"
)

// entrance is a proxy to a target's API server for the kubeconfig of one cluster. It accepts one token, and can be made faulty.
type entrance struct {
	*httptest.Server
	fault atomic.Pointer[serverfault.Fault]
	token atomic.Pointer[string]
}

// entrance returns an entrance that does not accept a token yet.
func (w *world) entrance(target *env.Cluster) *entrance {
	w.Helper()
	proxy, err := serverfault.Proxy(w.userOf(target))
	if err != nil {
		w.Fatal(err)
	}
	e := &entrance{}
	e.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if token := e.token.Load(); token == nil || r.Header.Get("Authorization") != "Bearer "+*token {
			http.Error(w, "unknown token", http.StatusUnauthorized)
			return
		}
		r.Header.Del("Authorization") // the proxy authenticates itself
		e.fault.Load().Serve(w, r, proxy.ServeHTTP)
	}))
	e.Config.ErrorLog = log.New(io.Discard, "", 0) // about aborted responses
	e.StartTLS()
	w.Cleanup(func() {
		e.CloseClientConnections() // watches do not terminate by themselves
		e.Close()
	})
	return e
}

// rotate replaces the accepted token, and returns the access with the new one.
func (e *entrance) rotate(token string) *rest.Config {
	e.token.Store(&token)
	e.CloseClientConnections()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: e.Certificate().Raw})
	return &rest.Config{Host: e.URL, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
}

// cut makes the API server unreachable until the fault is replaced.
func (e *entrance) cut() {
	e.fault.Store(&serverfault.Fault{Name: "is unreachable", Every: 1, Concerns: serverfault.AnyRequest, Respond: func(http.ResponseWriter, *http.Request, http.HandlerFunc) {
		panic(http.ErrAbortHandler) // closes the connection
	}})
	e.CloseClientConnections()
}
