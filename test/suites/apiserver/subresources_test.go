package apiserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/subresources"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/console"
	"github.com/millwright-dev/millwright/test/support/flood"
	"github.com/millwright-dev/millwright/test/support/program"
)

// operations are all operations of users.
var operations = []struct{ method, subresource, verb string }{
	{http.MethodGet, "console", "get"}, {http.MethodGet, "log", "get"}, {http.MethodPost, "reset", "create"},
	{http.MethodPost, "migrate", "create"}, {http.MethodDelete, "migrate", "delete"}, {http.MethodGet, "portforward", "get"},
	{http.MethodGet, "vnc", "get"}, {http.MethodGet, "screenshot", "get"},
	{http.MethodPost, "pause", "create"}, {http.MethodDelete, "pause", "delete"},
}

// TestSubresources is a single test, because a control plane has only one aggregated API.
func TestSubresources(t *testing.T) {
	w := newWorld(t)
	t.Run("requests without permission", w.within((*world).withoutPermission))
	t.Run("commands without permission", w.within((*world).commandsWithoutPermission))
	t.Run("the console only", w.within((*world).consoleOnly))
	t.Run("requests that do not come from kube-apiserver", w.within((*world).fromElsewhere))
	t.Run("strangers", w.within((*world).strangers))
	t.Run("invalid requests", w.within((*world).wrong))
	t.Run("two consoles", w.within((*world).twoConsoles))
	t.Run("a console whose client does not read", w.within((*world).deafConsole))
	t.Run("a log", w.within((*world).logs))
	t.Run("logs without end", w.within((*world).logsWithoutEnd))
	t.Run("forwarded ports", w.within((*world).forwardedPorts))
	t.Run("forwarded connections without end", w.within((*world).forwardedWithoutEnd))
	t.Run("the display", w.within((*world).display))
	t.Run("a VM without a display", w.within((*world).noDisplay))
	t.Run("reset and migrate", w.within((*world).resetAndMigrate))
	t.Run("pause", w.within((*world).pause))
	t.Run("commands", w.within((*world).commands))
	t.Run("port-forward", w.within((*world).portForward))
	t.Run("vnc", w.within((*world).vnc))
	t.Run("screenshot", w.within((*world).screenshot))
	t.Run("ssh", w.within((*world).secureShell))
	t.Run("another installation", w.within((*world).otherInstallation))
	w.used.Check(t, map[string]string{
		"create apiservices.apiregistration.k8s.io": "asked for by kube-apiserver when a patch creates the object",
	}, "config/rbac/vm-subresources-role.yaml")
}

// otherInstallation checks that the API remains with the Service for which it is registered.
func (w *world) otherInstallation() {
	err := w.register(types.NamespacedName{Namespace: "other", Name: "vm-api"})
	if err == nil || !strings.Contains(err.Error(), "already registered for service "+w.Namespace+"/vm-api") {
		w.t.Errorf("the API was registered for another service: %v", err)
	}
	if code, body := w.do(w.Admin, http.MethodGet, w.path("web", "log"), ""); code != http.StatusOK {
		w.t.Errorf("the log: %d %s", code, body)
	}
}

func (w *world) within(run func(*world)) func(*testing.T) {
	return func(t *testing.T) {
		outside := w.t
		w.t = t
		defer func() { w.t = outside }()
		run(w)
	}
}

// withoutPermission checks that a user without permission gets 403 for every request, whether the VM exists or not.
// The same applies to a user who has all permissions in another group, or for other verbs.
func (w *world) withoutPermission() {
	// Permission to read and change VMs covers the VirtualMachine objects only.
	owner := w.user("owner", rbacv1.PolicyRule{APIGroups: []string{"vm.metropolis.monogon.dev"}, Resources: []string{"*"}, Verbs: []string{"*"}},
		on("*", "list", "watch", "update", "patch"))
	for _, access := range []*rest.Config{w.user("unprivileged"), owner} {
		for _, operation := range operations {
			for _, vm := range []string{"web", "none"} {
				code, body := w.do(access, operation.method, w.path(vm, operation.subresource), "")
				status := metav1.Status{}
				if err := json.Unmarshal([]byte(body), &status); err != nil || code != http.StatusForbidden || status.Reason != metav1.StatusReasonForbidden {
					w.t.Errorf("%s %s of %s: %d %s", operation.method, operation.subresource, vm, code, body)
				}
			}
		}
		if conn, err := w.dial(access, ""); err == nil || !strings.Contains(err.Error(), "cannot get") {
			w.t.Errorf("a console: %v, %v", conn, err)
		}
		if conn, err := w.forward(access, "22"); err == nil || !strings.Contains(err.Error(), "cannot get") {
			w.t.Errorf("a forwarded port: %v, %v", conn, err)
		}
	}
	w.untouched()
}

// commandsWithoutPermission checks that every command fails and reports the missing permission, even for a VM that
// does not exist.
func (w *world) commandsWithoutPermission() {
	file := w.kubeconfig(w.user("unprivileged"))
	for _, c := range []struct{ command, denied string }{
		{"console", "cannot get resource \"virtualmachines/console\""},
		{"logs", "cannot get resource \"virtualmachines/log\""},
		{"reset", "cannot create resource \"virtualmachines/reset\""},
		{"pause", "cannot create resource \"virtualmachines/pause\""},
		{"unpause", "cannot delete resource \"virtualmachines/pause\""},
		{"port-forward", "cannot get resource \"virtualmachines/portforward\""},
		{"vnc", "cannot get resource \"virtualmachines/vnc\""},
		{"screenshot", "cannot get resource \"virtualmachines/screenshot\""},
		{"ssh", "cannot get resource \"virtualmachines\""},     // the command reads the VM first
		{"migrate", "cannot get resource \"virtualmachines\""}, // the command reads the VM first
		{"list", "cannot list resource \"virtualmachines\""},
	} {
		for _, vm := range []string{"web", "none"} {
			args := []string{"vm", c.command, vm}
			switch c.command {
			case "list":
				args = args[:2]
			case "port-forward":
				args = append(args, "22")
			}
			out, err := w.run("millwright", file, args...)
			if _, failed := errors.AsType[*exec.ExitError](err); !failed || strings.Count(out, "\n") != 1 ||
				!strings.Contains(out, "is forbidden: User \"unprivileged\" "+c.denied) {
				w.t.Errorf("%v: %v\n%s", args, err, out)
			}
		}
	}
	w.untouched()
}

// run runs a command under a name of the program until it exits.
func (w *world) run(name, kubeconfig string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), waitTimeout)
	defer cancel()
	command := program.Command(ctx, append(args, "--kubeconfig", kubeconfig, "-n", w.Namespace)...)
	command.Args[0] = name
	command.Stdin = strings.NewReader("")
	out, err := command.CombinedOutput()
	return string(out), err
}

// consoleOnly checks that a user with permission for the console has access to nothing else.
func (w *world) consoleOnly() {
	access := w.user("console", on("console", "get"))
	w.awaitConsole(access)
	before := w.dials.Load()
	for _, operation := range operations[1:] {
		if code, body := w.do(access, operation.method, w.path("web", operation.subresource), ""); code != http.StatusForbidden {
			w.t.Errorf("%s %s: %d %s", operation.method, operation.subresource, code, body)
		}
	}
	if w.dials.Load() != before || w.resets.Load() != 0 {
		w.t.Errorf("%d connections, %d resets", w.dials.Load()-before, w.resets.Load())
	}
}

// awaitConsole waits until a user can open the console.
func (w *world) awaitConsole(access *rest.Config) {
	w.t.Helper()
	w.eventually("the user gets the console", func() bool {
		conn, err := w.dial(access, "")
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
}

// fromElsewhere checks that headers with a user name are accepted from kube-apiserver only.
func (w *world) fromElsewhere() {
	before := w.resets.Load()
	forged, err := w.stranger().ServerCertificate("front-proxy-client", time.Hour, time.Now())
	w.must(err)
	for name, certificate := range map[string]*tls.Certificate{"no certificate": nil, "another authority's": forged} {
		if code := w.comesFor(certificate, "admin", "system:masters"); code != 0 && code != http.StatusUnauthorized {
			w.t.Errorf("%s: %d", name, code)
		}
	}
	if w.resets.Load() != before {
		w.t.Error("the VM was reset")
	}
	// The permissions of the user are checked even if the client has the proxy's certificate.
	pki := filepath.Join(w.ControlPlane.Dir(), "pki", "front-proxy-client")
	proxy, err := tls.LoadX509KeyPair(pki+".crt", pki+".key")
	w.must(err)
	if code := w.comesFor(&proxy, "unprivileged", ""); code != http.StatusForbidden || w.resets.Load() != before {
		w.t.Errorf("the proxy acts for an unprivileged user: %d, %d resets", code, w.resets.Load()-before)
	}
	if code := w.comesFor(&proxy, "admin", "system:masters"); code != http.StatusOK || w.resets.Load() != before+1 {
		w.t.Errorf("the proxy acts for the administrator: %d, %d resets", code, w.resets.Load()-before)
	}
	w.resets.Store(before)
}

// comesFor resets the VM on behalf of a user, as a client with a certificate, and returns the status; 0 if the
// connection fails.
func (w *world) comesFor(certificate *tls.Certificate, user, group string) int {
	w.t.Helper()
	request, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, "https://"+w.address+w.path("web", "reset"), nil)
	w.must(err)
	request.Header.Set("X-Remote-User", user)
	request.Header.Set("X-Remote-Group", group)
	response, err := w.direct(certificate).Do(request)
	if err != nil {
		return 0
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// strangers checks that clients other than kube-apiserver cannot keep a connection, and that an address can open
// only a few at a time.
func (w *world) strangers() {
	forged, err := w.stranger().ServerCertificate("front-proxy-client", time.Hour, time.Now())
	w.must(err)
	conn, err := tls.Dial("tcp", w.address, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{*forged}, MinVersion: tls.VersionTLS12})
	if err == nil {
		w.must(conn.SetDeadline(time.Now().Add(waitTimeout)))
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") // and keeps it open for another request
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			w.t.Error("a connection with another authority's certificate is kept")
		}
		_ = conn.Close()
	}
	flood.Past(w.t, w.address, 256)
	if code, body := w.do(w.Admin, http.MethodGet, w.path("web", "log"), ""); code != http.StatusOK {
		w.t.Errorf("the log for who comes from elsewhere: %d %s", code, body)
	}
}

// wrong checks requests for VMs that do not exist, requests that do not open a console, and requests from another
// site.
func (w *world) wrong() {
	before := w.dials.Load()
	for name, c := range map[string]struct {
		method, path, body string
		code               int
		wantText           string
	}{
		"no such VM":                  {http.MethodPost, w.path("none", "reset"), "", http.StatusNotFound, `\"none\" not found`},
		"a display without WebSocket": {http.MethodGet, w.path("web", "vnc"), "", http.StatusBadRequest, "WebSocket"},
		"no such subresource":         {http.MethodPost, w.path("web", "spice"), "", http.StatusNotFound, "could not find"},
		"more in the path":            {http.MethodGet, w.path("web", "console") + "/x", "", http.StatusNotFound, "could not find"},
		"a VM itself":                 {http.MethodGet, strings.TrimSuffix(w.path("web", ""), "/"), "", http.StatusNotFound, "could not find"},
		"another verb":                {http.MethodPut, w.path("web", "reset"), "", http.StatusMethodNotAllowed, "not supported"},
		"a console without WebSocket": {http.MethodGet, w.path("web", "console"), "", http.StatusBadRequest, "WebSocket"},
		"a port without WebSocket":    {http.MethodGet, w.path("web", "portforward") + "?port=22", "", http.StatusBadRequest, "WebSocket"},
		"no port":                     {http.MethodGet, w.path("web", "portforward"), "", http.StatusBadRequest, "between 1 and 65535"},
		"port 0":                      {http.MethodGet, w.path("web", "portforward") + "?port=0", "", http.StatusBadRequest, "between 1 and 65535"},
		"too high a port":             {http.MethodGet, w.path("web", "portforward") + "?port=65558", "", http.StatusBadRequest, "between 1 and 65535"},
		"another address":             {http.MethodGet, w.path("web", "portforward") + "?port=10.0.0.1:22", "", http.StatusBadRequest, "between 1 and 65535"},
		"no truth":                    {http.MethodGet, w.path("web", "log") + "?follow=maybe", "", http.StatusBadRequest, "true or false"},
		"a field that is not there":   {http.MethodPost, w.path("web", "migrate"), `{"node":"host-2"}`, http.StatusBadRequest, "nodeName"},
		"no name":                     {http.MethodPost, w.path("web", "migrate"), `{"nodeName":"a/b"}`, http.StatusBadRequest, "not a valid node name"},
		"a long body":                 {http.MethodPost, w.path("web", "migrate"), `{"nodeName":"` + strings.Repeat("a", 8<<10) + `"}`, http.StatusBadRequest, "too large"},
		"where it is":                 {http.MethodPost, w.path("web", "migrate"), `{"nodeName":"host-1"}`, http.StatusConflict, "already on host host-1"},
		"nothing to cancel":           {http.MethodDelete, w.path("web", "migrate"), "", http.StatusConflict, "no migration"},
	} {
		if code, body := w.do(w.Admin, c.method, c.path, c.body); code != c.code || !strings.Contains(body, c.wantText) {
			w.t.Errorf("%s: %d %s", name, code, body)
		}
	}
	foreign := rest.CopyConfig(w.Admin)
	foreign.Wrap(func(next http.RoundTripper) http.RoundTripper { return withOrigin{next} })
	if conn, err := w.dial(foreign, ""); err == nil {
		w.t.Errorf("another site's page gets a console: %v", conn.Subprotocol())
	}
	w.program(22, func(conn *net.TCPConn) { _, _ = io.Copy(io.Discard, conn) })
	if conn, err := w.forward(foreign, "22"); err == nil {
		w.t.Errorf("another site's page gets a port: %v", conn.Subprotocol())
	}
	if w.resets.Load() != 0 || w.dials.Load() != before+2 { // the requests from another site are rejected last
		w.t.Errorf("%d resets, %d connections", w.resets.Load(), w.dials.Load()-before)
	}
}

type withOrigin struct{ http.RoundTripper }

func (o withOrigin) RoundTrip(request *http.Request) (*http.Response, error) {
	request.Header.Set("Origin", "https://elsewhere.example.org")
	return o.RoundTripper.RoundTrip(request)
}

// everyByte contains each byte once.
func everyByte() []byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return all
}

// twoConsoles checks that both consoles get the same bytes, that the guest gets the input of both, and that the
// last output is sent on request.
func (w *world) twoConsoles() {
	w.print(append([]byte("before"), everyByte()...))
	with := w.open(w.Admin, "?replay=true")
	if got := w.read(with, 6+256); !bytes.HasSuffix(got, append([]byte("before"), everyByte()...)) {
		w.t.Errorf("the replay is %q", got)
	}
	without := w.open(w.Admin, "")
	w.print(everyByte())
	for name, conn := range map[string]*websocket.Conn{"with replay": with, "without": without} {
		if got := w.read(conn, 256); !bytes.Equal(got, everyByte()) {
			w.t.Errorf("%s: %q", name, got)
		}
		w.must(conn.WriteMessage(websocket.BinaryMessage, append([]byte(name), everyByte()...)))
		heard := make([]byte, len(name)+256)
		for n := 0; n < len(heard); {
			w.must(w.serial.SetReadDeadline(time.Now().Add(waitTimeout)))
			more, err := w.serial.Read(heard[n:])
			w.must(err)
			n += more
		}
		if !bytes.Equal(heard, append([]byte(name), everyByte()...)) {
			w.t.Errorf("the guest hears %q", heard)
		}
	}
	w.must(without.WriteMessage(websocket.TextMessage, []byte("no text")))
	w.must(without.WriteMessage(websocket.BinaryMessage, []byte("x")))
	one := make([]byte, 1)
	w.must(w.serial.SetReadDeadline(time.Now().Add(waitTimeout)))
	if _, err := w.serial.Read(one); err != nil || one[0] != 'x' {
		w.t.Errorf("the guest hears %q (%v)", one, err)
	}
}

// deafConsole checks that a client that does not read is disconnected, and blocks neither the guest nor others.
func (w *world) deafConsole() {
	deaf, awake := w.open(w.Admin, ""), w.open(w.Admin, "")
	piece := bytes.Repeat([]byte("0123456789abcdef"), 1024)
	const pieces = 4096 // 64 MiB, more than all buffers together
	var got atomic.Int64
	progress, heard := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		defer close(progress)
		for got.Load() < pieces*int64(len(piece)) {
			data, err := next(awake)
			if err == nil && data[0] != piece[got.Load()%16] {
				err = fmt.Errorf("the next one is %q", data[0])
			}
			if err != nil {
				heard <- fmt.Errorf("after %d bytes: %w", got.Load(), err)
				return
			}
			got.Add(int64(len(data)))
			select {
			case progress <- struct{}{}:
			default:
			}
		}
		heard <- nil
	}()
	for sent := range int64(pieces) {
		w.print(piece)
		for more := true; more && (sent+1)*int64(len(piece))-got.Load() > 64<<10; { // otherwise the client would be too slow
			_, more = <-progress
		}
	}
	if err := <-heard; err != nil {
		w.t.Errorf("who reads misses something: %v", err)
	}
	for {
		if _, err := next(deaf); err != nil {
			closed := &websocket.CloseError{}
			if !errors.As(err, &closed) && !strings.Contains(err.Error(), "reset") && !strings.Contains(err.Error(), "EOF") {
				w.t.Errorf("who does not read is left with %v", err)
			}
			return
		}
	}
}

// logs checks the last output, and following the log.
func (w *world) logs() {
	w.print([]byte("\r\nlast output\r\n"))
	code, body := w.do(w.Admin, http.MethodGet, w.path("web", "log"), "")
	if code != http.StatusOK || !strings.HasSuffix(body, "last output\r\n") || len(body) != console.HistorySize {
		w.t.Errorf("%d, %d bytes that end with %q", code, len(body), body[max(0, len(body)-30):])
	}
}

// logsWithoutEnd checks that a user who has permission only for the log cannot keep others from the console.
func (w *world) logsWithoutEnd() {
	clients, err := rest.HTTPClientFor(w.Admin)
	w.must(err)
	var open []io.Closer
	follow := func() int {
		response, err := clients.Get(w.Admin.Host + w.path("web", "log") + "?follow=true")
		w.must(err)
		open = append(open, response.Body)
		return response.StatusCode
	}
	for range subresources.MaxStreams {
		if code := follow(); code != http.StatusOK {
			w.t.Fatalf("a log: %d", code)
		}
	}
	if code := follow(); code != http.StatusTooManyRequests {
		w.t.Errorf("one log more: %d", code)
	}
	_ = w.open(w.Admin, "").Close()
	for _, log := range open {
		_ = log.Close()
	}
	w.eventually("a log can be read again", func() bool {
		code, _ := w.do(w.Admin, http.MethodGet, w.path("web", "log"), "")
		return code == http.StatusOK
	})
}

// program runs a program that stands for one in the guest until the end of the test.
func (w *world) program(port uint16, handle func(*net.TCPConn)) {
	w.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	w.programs[port] = listener.Addr().String()
	w.t.Cleanup(func() {
		delete(w.programs, port)
		_ = listener.Close()
	})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test is over
			}
			go func() {
				defer conn.Close()
				handle(conn.(*net.TCPConn))
			}()
		}
	}()
}

// forwardedPorts checks that a connection carries every byte and the end of each direction, and that a port without a
// program is reported.
func (w *world) forwardedPorts() {
	w.program(80, func(conn *net.TCPConn) {
		request, _ := io.ReadAll(conn)
		_, _ = conn.Write(append(request, " and a response"...))
	})
	conn, err := w.forward(w.Admin, "80")
	w.must(err)
	defer conn.Close()
	request := bytes.Repeat(everyByte(), 4<<10)
	for piece := range slices.Chunk(request, 10_000) {
		w.must(conn.WriteMessage(websocket.BinaryMessage, piece))
	}
	w.must(conn.WriteMessage(websocket.TextMessage, []byte("no text")))
	w.must(conn.WriteMessage(websocket.BinaryMessage, nil)) // the end of the request
	var got bytes.Buffer
	for err == nil {
		var piece []byte
		piece, err = next(conn)
		got.Write(piece)
	}
	if want := string(request) + " and a response"; got.String() != want || !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
		w.t.Errorf("%d bytes, %v; want %d bytes and the end", got.Len(), err, len(want))
	}
	w.program(81, func(conn *net.TCPConn) {
		_, _ = conn.Read(make([]byte, 1)) // an earlier reset could be one of the attempt to connect
		_ = conn.SetLinger(0)
	})
	broken, err := w.forward(w.Admin, "81")
	w.must(err)
	w.must(broken.WriteMessage(websocket.BinaryMessage, []byte("x")))
	if _, err := next(broken); !websocket.IsCloseError(err, websocket.CloseGoingAway) {
		w.t.Errorf("a broken connection: %v", err)
	}
	if _, err := w.forward(w.Admin, "82"); err == nil || !strings.Contains(err.Error(), "cannot connect to port 82 of the guest: connection was refused") {
		w.t.Errorf("a port without a program: %v", err)
	}
	before := w.dials.Load()
	if code, body := w.do(w.Admin, http.MethodGet, w.path("web", "portforward")+"?port=80&dryRun=All", ""); code != http.StatusOK || w.dials.Load() != before+1 {
		w.t.Errorf("a dry run: %d %s", code, body)
	}
}

// forwardedWithoutEnd checks that the limit of forwarded connections leaves the console to others, and that a client that
// does not read keeps only its own connection waiting.
func (w *world) forwardedWithoutEnd() {
	w.program(80, func(conn *net.TCPConn) {
		for {
			if _, err := conn.Write(everyByte()); err != nil {
				return
			}
		}
	})
	var open []*websocket.Conn
	for range subresources.MaxStreams {
		conn, err := w.forward(w.Admin, "80") // not read
		w.must(err)
		open = append(open, conn)
	}
	if _, err := w.forward(w.Admin, "80"); err == nil || !strings.Contains(err.Error(), "too many open portforward streams") {
		w.t.Errorf("one connection more: %v", err)
	}
	_ = w.open(w.Admin, "").Close()
	if got, err := next(open[0]); err != nil || got[0] != 0 {
		w.t.Errorf("a client that begins to read gets %d bytes, %v", len(got), err)
	}
	for _, conn := range open {
		_ = conn.Close()
	}
	w.eventually("a connection can be opened again", func() bool {
		conn, err := w.forward(w.Admin, "80")
		return err == nil && conn.Close() == nil
	})
}

// pause checks that a pause is written to the spec once, and withdrawn.
func (w *world) pause() {
	mode := func() vmv1alpha1.VirtualMachineMode {
		vm := &vmv1alpha1.VirtualMachine{}
		w.must(w.client.Get(w.t.Context(), client.ObjectKeyFromObject(w.vm), vm))
		return vm.Spec.Mode
	}
	for _, c := range []struct {
		method, query string
		want          vmv1alpha1.VirtualMachineMode
	}{
		{http.MethodDelete, "", vmv1alpha1.ModeRun}, {http.MethodPost, "?dryRun=All", vmv1alpha1.ModeRun}, {http.MethodPost, "", vmv1alpha1.ModePause},
		{http.MethodPost, "", vmv1alpha1.ModePause}, {http.MethodDelete, "?dryRun=All", vmv1alpha1.ModePause}, {http.MethodDelete, "", vmv1alpha1.ModeRun},
	} {
		code, body := w.do(w.Admin, c.method, w.path("web", "pause")+c.query, "")
		if got := mode(); code != http.StatusOK || got != c.want {
			w.t.Errorf("%s%s: %d %s; mode %q, want %q", c.method, c.query, code, body, got, c.want)
		}
	}
}

// resetAndMigrate checks that each is done once, and that a migration is requested as if manually.
func (w *world) resetAndMigrate() {
	before := w.resets.Load()
	if code, body := w.do(w.Admin, http.MethodPost, w.path("web", "reset"), ""); code != http.StatusOK || w.resets.Load() != before+1 {
		w.t.Errorf("%d %s, %d resets", code, body, w.resets.Load()-before)
	}
	for query, want := range map[string]int{"?dryRun=All": http.StatusOK, "?dryRun=Some": http.StatusBadRequest} {
		for _, subresource := range []string{"reset", "migrate"} {
			if code, body := w.do(w.Admin, http.MethodPost, w.path("web", subresource)+query, ""); code != want {
				w.t.Errorf("%s%s: %d %s", subresource, query, code, body)
			}
		}
	}
	vm := &vmv1alpha1.VirtualMachine{}
	w.must(w.client.Get(w.t.Context(), client.ObjectKeyFromObject(w.vm), vm))
	if ordered := vm.Annotations[vmv1alpha1.AnnotationMigrate]; ordered != "" || w.resets.Load() != before+1 {
		w.t.Errorf("dry runs requested %q and %d resets", ordered, w.resets.Load()-before-1)
	}
	for _, c := range []struct{ method, body, want string }{
		{http.MethodPost, `{"nodeName":"host-2"}`, "web-1/host-2"}, {http.MethodPost, "", "web-1/host-2"},
		{http.MethodDelete, "", ""}, {http.MethodPost, "", "web-1"}, {http.MethodDelete, "", ""},
	} {
		code, body := w.do(w.Admin, c.method, w.path("web", "migrate"), c.body)
		vm := &vmv1alpha1.VirtualMachine{}
		w.must(w.client.Get(w.t.Context(), client.ObjectKeyFromObject(w.vm), vm))
		if code != http.StatusOK || vm.Annotations[vmv1alpha1.AnnotationMigrate] != c.want {
			w.t.Errorf("%s %s: %d %s; ordered %q", c.method, c.body, code, body, vm.Annotations[vmv1alpha1.AnnotationMigrate])
		}
	}
}

// commands checks the commands, as millwright and as a kubectl plug-in, with any kubeconfig.
func (w *world) commands() {
	operator := w.user("operator", on("console", "get"), on("log", "get"), on("reset", "create"),
		rbacv1.PolicyRule{APIGroups: []string{"vm.metropolis.monogon.dev"}, Resources: []string{"virtualmachines"}, Verbs: []string{"get", "list"}})
	w.awaitConsole(operator)
	file := w.kubeconfig(operator)
	for _, c := range []struct {
		name     string
		args     []string
		wantText string
		fails    bool
	}{
		{"millwright", []string{"vm", "reset", "web"}, "web was reset.\n", false},
		{"kubectl-millwright", []string{"vm", "reset", "web"}, "web was reset.\n", false},
		{"millwright", []string{"vm", "reset", "web", "--dry-run=server"}, "web was reset (server dry run).\n", false},
		{"kubectl-millwright", []string{"vm", "list"}, "host-1", false},
		{"millwright", []string{"vm", "port-forward", "web", "22"}, "virtualmachines/portforward", true},
		{"millwright", []string{"vm", "ssh", "none"}, "virtual machine none not found", true},
		{"millwright", []string{"vm", "logs", "web"}, "last output", false},
		{"millwright", []string{"vm", "reset", "none"}, `"none" not found`, true},
		{"millwright", []string{"vm", "migrate", "web"}, "virtualmachines/migrate", true},
		{"kubectl-millwright", []string{"vm", "console"}, `Run "kubectl millwright vm console --help"`, true},
	} {
		out, err := w.run(c.name, file, c.args...)
		if _, failed := errors.AsType[*exec.ExitError](err); failed != c.fails || !strings.Contains(out, c.wantText) {
			w.t.Errorf("%s %v: %v\n%s", c.name, c.args, err, out)
		}
	}
	w.session(file)
}

// session types at a console, and reads the guest's output.
func (w *world) session(kubeconfig string) {
	w.t.Helper()
	command := program.Command(w.t.Context(), "vm", "console", "web", "--replay=false", "--kubeconfig", kubeconfig, "-n", w.Namespace)
	in, err := command.StdinPipe()
	w.must(err)
	out := &program.Output{}
	command.Stdout, command.Stderr = out, out
	w.must(command.Start())
	_, err = in.Write([]byte("login"))
	w.must(err)
	heard := make([]byte, 5)
	w.must(w.serial.SetReadDeadline(time.Now().Add(waitTimeout)))
	if _, err := w.serial.Read(heard); err != nil || string(heard) != "login" {
		w.t.Errorf("the guest hears %q (%v)", heard, err)
	}
	w.print([]byte("welcome\x1b[6n"))
	w.eventually("the user reads every byte", func() bool { return out.String() == "welcome\x1b[6n" })
	_ = command.Process.Kill() // without a terminal, it only exits this way
	_ = command.Wait()
}
