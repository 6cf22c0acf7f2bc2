package apiserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"image"
	"image/png"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	api "github.com/millwright-dev/millwright/api/vm/subresources"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/service"
	"github.com/millwright-dev/millwright/test/support/program"
)

const (
	// viewerHello is the handshake of a viewer.
	viewerHello = "RFB 003.008\n\x01\x01"
	// viewerKey is the message for a pressed key, and viewerAudio a message that the filter rejects.
	viewerKey   = "\x04\x01\x00\x00\x00\x00\x00a"
	viewerAudio = "\xff\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
)

// echoes is a display that returns all data that it gets.
func echoes(conn net.Conn) { _, _ = io.Copy(conn, conn) }

// view connects a viewer.
func (w *world) view(access *rest.Config) (*websocket.Conn, error) {
	w.t.Helper()
	return w.socket(access, w.path("web", "vnc"), api.VNCProtocol)
}

// display checks that the display gets only permitted messages of viewers, that the number of viewers is limited, and that
// users with other permissions and pages of other sites cannot connect.
func (w *world) display() {
	w.screen = echoes
	var open []*websocket.Conn
	for range service.MaxViewers {
		conn, err := w.view(w.Admin)
		w.must(err)
		open = append(open, conn)
	}
	if _, err := w.view(w.Admin); err == nil || !strings.Contains(err.Error(), "4 viewers are connected to the display") {
		w.t.Errorf("a viewer above the limit: %v", err)
	}
	for _, piece := range []string{viewerHello[:5], viewerHello[5:] + viewerKey[:3], viewerKey[3:]} {
		w.must(open[0].WriteMessage(websocket.BinaryMessage, []byte(piece)))
	}
	if got := w.read(open[0], len(viewerHello+viewerKey)); string(got) != viewerHello+viewerKey {
		w.t.Errorf("the display got %q", got)
	}
	w.must(open[0].WriteMessage(websocket.BinaryMessage, []byte(viewerAudio)))
	if data, err := next(open[0]); !websocket.IsCloseError(err, websocket.ClosePolicyViolation) || !strings.Contains(err.Error(), "message of type 255.1") {
		w.t.Errorf("a message that is not allowed: %q, %v", data, err)
	}
	w.must(open[1].WriteMessage(websocket.BinaryMessage, nil)) // the end
	if data, err := next(open[1]); !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
		w.t.Errorf("after the viewer has left: %q, %v", data, err)
	}
	for _, conn := range open {
		_ = conn.Close()
	}
	w.screen = func(net.Conn) {} // QEMU terminates
	var gone *websocket.Conn
	w.eventually("a viewer can connect again", func() bool {
		var err error
		gone, err = w.view(w.Admin)
		return err == nil
	})
	if data, err := next(gone); !websocket.IsCloseError(err, websocket.CloseGoingAway) {
		w.t.Errorf("after the VM has terminated: %q, %v", data, err)
	}
	foreign := rest.CopyConfig(w.Admin)
	foreign.Wrap(func(next http.RoundTripper) http.RoundTripper { return withOrigin{next} })
	if conn, err := w.view(foreign); err == nil {
		w.t.Errorf("another site's page gets the display: %v", conn.Subprotocol())
	}
	if code, body := w.do(w.Admin, http.MethodGet, w.path("web", "vnc")+"?dryRun=All", ""); code != http.StatusOK {
		w.t.Errorf("a dry run: %d %s", code, body)
	}
}

// noDisplay checks that the error names the field to set.
func (w *world) noDisplay() {
	plain := &vmv1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "plain"}}
	w.must(w.client.Create(w.t.Context(), plain))
	defer func() { w.must(w.client.Delete(w.t.Context(), plain)) }()
	for _, subresource := range []string{"vnc", "screenshot"} {
		code, body := w.do(w.Admin, http.MethodGet, w.path("plain", subresource), "")
		status := metav1.Status{}
		if err := json.Unmarshal([]byte(body), &status); err != nil || code != http.StatusConflict || !strings.Contains(status.Message, "create it with spec.display: VNC") {
			w.t.Errorf("%s: %d %s", subresource, code, body)
		}
		if out, err := w.run("millwright", w.kubeconfig(w.Admin), "vm", subresource, "plain"); err == nil || !strings.Contains(out, "virtual machine plain has no display; to get one, create it with spec.display: VNC") {
			w.t.Errorf("vm %s: %v\n%s", subresource, err, out)
		}
	}
}

// vnc checks "vm vnc": its address, its errors, and that it runs a viewer until the viewer exits.
func (w *world) vnc() {
	w.screen = echoes
	access, out := w.user("viewer", on("vnc", "get")), &program.Output{}
	file := w.kubeconfig(access)
	w.eventually("the permission is effective", func() bool {
		code, _ := w.do(access, http.MethodGet, w.path("web", "vnc")+"?dryRun=All", "")
		return code == http.StatusOK
	})
	command := program.Command(w.t.Context(), "vm", "vnc", "web", "--proxy-only", "--kubeconfig", file, "-n", w.Namespace)
	command.Stdout, command.Stderr = out, out
	w.must(command.Start())
	w.eventually("the address is printed", func() bool { return strings.Contains(out.String(), "\n") })
	address := strings.TrimSpace(strings.TrimPrefix(out.String(), "vnc://"))
	if !strings.HasPrefix(address, "127.0.0.1:") {
		w.t.Errorf("the address is %q", out)
	}
	for range service.MaxViewers + 1 { // one after another
		conn, err := net.Dial("tcp", address)
		w.must(err)
		w.must(conn.SetDeadline(time.Now().Add(waitTimeout)))
		_, err = io.WriteString(conn, viewerHello+viewerKey)
		w.must(err)
		got := make([]byte, len(viewerHello+viewerKey))
		if _, err := io.ReadFull(conn, got); string(got) != viewerHello+viewerKey || err != nil {
			w.t.Errorf("got %q, %v", got, err)
		}
		_, err = io.WriteString(conn, viewerAudio)
		w.must(err)
		if rest, err := io.ReadAll(conn); len(rest) > 0 || err != nil {
			w.t.Errorf("after a message that is not allowed: %q, %v", rest, err)
		}
		_ = conn.Close()
	}
	w.eventually("each viewer's end is explained", func() bool {
		return strings.Count(out.String(), "the viewer was disconnected: the connection was closed: the viewer sent a message of type 255.1, which is not supported\n") == service.MaxViewers+1
	})
	w.must(command.Process.Signal(os.Interrupt))
	if err := command.Wait(); err != nil {
		w.t.Errorf("after Ctrl-C: %v\n%s", err, out)
	}

	// A viewer that the command finds in PATH gets the address.
	bin := w.t.TempDir()
	w.must(os.WriteFile(filepath.Join(bin, "vncviewer"), []byte("#!/bin/sh\necho \"viewing $1\"\n"), 0o700))
	command = program.Command(w.t.Context(), "vm", "vnc", "web", "--kubeconfig", file, "-n", w.Namespace)
	command.Env = append(command.Env, "PATH="+bin)
	text, err := command.CombinedOutput()
	if err != nil || !strings.Contains(string(text), "\nviewing 127.0.0.1::") {
		w.t.Errorf("with a viewer: %v\n%s", err, text)
	}
}

// screenshot checks "vm screenshot", to a file and to standard output.
func (w *world) screenshot() {
	var picture bytes.Buffer
	w.must(png.Encode(&picture, image.NewRGBA(image.Rect(0, 0, 720, 400))))
	w.picture = picture.Bytes()
	file, dir := w.kubeconfig(w.Admin), w.t.TempDir()
	path := filepath.Join(dir, "screen.png")
	if out, err := w.run("millwright", file, "vm", "screenshot", "web", "-f", path); err != nil || out != path+" was saved.\n" {
		w.t.Errorf("%v\n%s", err, out)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, w.picture) {
		w.t.Errorf("the file has %d bytes, %v", len(got), err)
	}
	if out, err := w.run("millwright", file, "vm", "screenshot", "web", "-f", "-"); err != nil || out != picture.String() {
		w.t.Errorf("standard output: %d bytes, %v", len(out), err)
	}
	w.picture = []byte("<html>")
	absent := filepath.Join(dir, "absent.png")
	out, err := w.run("millwright", file, "vm", "screenshot", "web", "-f", absent)
	if _, missing := os.Stat(absent); err == nil || !errors.Is(missing, os.ErrNotExist) || !strings.Contains(out, "is not a PNG image") {
		w.t.Errorf("something else than an image: %v, %v\n%s", err, missing, out)
	}
}
