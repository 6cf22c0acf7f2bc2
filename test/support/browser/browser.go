// Package browser runs headless Chromium in tests of web pages.
//
// It uses Chromium's DevTools protocol over pipes, without a port. It has the few calls that the tests need; a library
// with the whole protocol would take minutes to compile.
package browser

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/test/support/tier"
)

// Timeout limits how long Await waits.
const Timeout = 2 * time.Minute

// Page is a tab of a browser of its own.
type Page struct {
	t       testing.TB
	write   io.Writer
	session string

	mu       sync.Mutex
	last     int
	waiting  map[int]chan message
	problems []string
}

// message is a message of the protocol.
type message struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *protocolError  `json:"error,omitempty"`
	broken  error
}

type protocolError struct {
	Message string `json:"message"`
}

// Open starts Chromium with an empty page. It is closed when the test is complete. Only "make test-all" runs such tests.
// Without Chromium, the test is skipped; "make chromium" installs it.
func Open(t testing.TB) *Page {
	t.Helper()
	tier.All(t)
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip(`Chromium is not installed; as root, "make chromium" installs it`)
	}
	profile := t.TempDir()
	toBrowser, write := pipe(t)
	read, fromBrowser := pipe(t)
	ctx, cancel := context.WithCancel(context.Background())
	command := exec.CommandContext(ctx, program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
		"--no-first-run", "--force-color-profile=srgb", "--disable-lcd-text", "--remote-debugging-pipe", "--window-size=1440,1000", "--user-data-dir="+profile, "about:blank")
	command.Env = append(append(os.Environ(), "HOME="+profile), fixedFonts(t, profile)...)
	command.ExtraFiles = []*os.File{toBrowser, fromBrowser}                                      // descriptors 3 and 4
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}                                    // it exits when its pipe is closed
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) } // with its children
	if err := command.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	toBrowser.Close()
	fromBrowser.Close()
	p := &Page{t: t, write: write, waiting: map[int]chan message{}}
	go p.receive(read)
	t.Cleanup(func() {
		cancel()
		_ = command.Wait() // it was killed
		write.Close()
		read.Close()
		await(t, func() bool { return os.RemoveAll(profile) == nil })
	})
	p.attach()
	return p
}

// await retries until done returns true: processes of a killed group can still write for a moment.
func await(t testing.TB, done func() bool) {
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Error("the profile of the browser cannot be removed")
			return
		}
	}
}

func pipe(t testing.TB) (read, write *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return read, write
}

// attach opens a session with a new tab.
func (p *Page) attach() {
	p.t.Helper()
	var target struct {
		TargetID string `json:"targetId"`
	}
	p.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct {
		SessionID string `json:"sessionId"`
	}
	p.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	p.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		p.call(domain+".enable", nil, nil)
	}
}

// receive distributes messages until the browser exits.
func (p *Page) receive(from io.Reader) {
	reader := bufio.NewReaderSize(from, 1<<20)
	for {
		text, err := reader.ReadBytes(0)
		if err != nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			for _, waiting := range p.waiting {
				waiting <- message{broken: fmt.Errorf("the browser has exited: %w", err)}
			}
			p.waiting = nil
			return
		}
		var m message
		if json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m) != nil {
			continue
		}
		p.mu.Lock()
		if waiting := p.waiting[m.ID]; m.ID != 0 && waiting != nil {
			delete(p.waiting, m.ID)
			waiting <- m
		} else {
			p.note(m)
		}
		p.mu.Unlock()
	}
}

// note remembers exceptions, errors on the console, and violations of the page's policy.
func (p *Page) note(m message) {
	switch m.Method {
	case "Runtime.exceptionThrown":
		p.problems = append(p.problems, string(m.Params))
	case "Log.entryAdded":
		var added struct {
			Entry struct{ Level, Text, URL string }
		}
		if json.Unmarshal(m.Params, &added) == nil && added.Entry.Level == "error" {
			p.problems = append(p.problems, added.Entry.Text+" "+added.Entry.URL)
		}
	}
}

// Problems returns the exceptions, errors and violations of policies since the last call.
func (p *Page) Problems() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	problems := slices.Clone(p.problems)
	p.problems = nil
	return problems
}

// call calls a method of the protocol. The test fails if the browser returns an error.
func (p *Page) call(method string, params, result any) {
	p.t.Helper()
	if err := p.try(method, params, result); err != nil {
		p.t.Fatal(err)
	}
}

// try calls a method of the protocol.
func (p *Page) try(method string, params, result any) error {
	response := make(chan message, 1)
	p.mu.Lock()
	if p.waiting == nil {
		p.mu.Unlock()
		return fmt.Errorf("%s: the browser has exited", method)
	}
	p.last++
	request := message{ID: p.last, Session: p.session, Method: method, Params: json.RawMessage("{}")}
	p.waiting[request.ID] = response
	p.mu.Unlock()
	var err error
	if params != nil {
		request.Params, err = json.Marshal(params)
	}
	if err == nil {
		var text []byte
		if text, err = json.Marshal(request); err == nil {
			_, err = p.write.Write(append(text, 0))
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	select {
	case m := <-response:
		switch {
		case m.broken != nil:
			return fmt.Errorf("%s: %w", method, m.broken)
		case m.Error != nil:
			return fmt.Errorf("%s: %s", method, m.Error.Message)
		case result != nil:
			return json.Unmarshal(m.Result, result)
		}
		return nil
	case <-time.After(2 * Timeout):
		return fmt.Errorf("%s: the browser does not respond", method)
	}
}

// Navigate opens an address, and waits until its document is loaded.
func (p *Page) Navigate(url string) {
	p.t.Helper()
	p.call("Page.navigate", map[string]any{"url": url}, nil)
	p.Await(`location.href !== "about:blank" && document.readyState === "complete"`)
}

// IgnoreCertificateErrors makes the page accept self-signed certificates.
func (p *Page) IgnoreCertificateErrors() {
	p.t.Helper()
	p.call("Security.setIgnoreCertificateErrors", map[string]any{"ignore": true}, nil)
}

// Resize sets the size of the page in pixels, and whether the user prefers dark colors. When it returns, the page has been
// painted, so its ResizeObservers have run.
func (p *Page) Resize(width, height int, dark bool) {
	p.t.Helper()
	p.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	p.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{
		{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"},
	}}, nil)
	// The observers run after the callbacks of a frame.
	p.evaluate(`new Promise((painted) => requestAnimationFrame(() => requestAnimationFrame(painted)))`)
}

// evaluate evaluates a JavaScript expression, and awaits it if it is a promise.
func (p *Page) evaluate(expression string) (value json.RawMessage, exception string) {
	p.t.Helper()
	var result struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	err := p.try("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &result)
	if err != nil { // for example, because the page navigates
		return nil, err.Error()
	}
	if result.Exception != nil {
		return nil, strings.TrimSpace(result.Exception.Text + " " + result.Exception.Exception.Description)
	}
	return result.Result.Value, ""
}

// Evaluate evaluates a JavaScript expression, awaits it if it is a promise, and decodes its value.
func Evaluate[T any](p *Page, expression string) (value T) {
	p.t.Helper()
	text, exception := p.evaluate(expression)
	if exception != "" {
		p.t.Fatalf("%s: %s", expression, exception)
	}
	if len(text) > 0 {
		if err := json.Unmarshal(text, &value); err != nil {
			p.t.Fatalf("%s: %s: %v", expression, text, err)
		}
	}
	return value
}

// Await waits until a JavaScript expression is true. The page may navigate in the meantime. If it takes too long, the
// test fails with the text of the page.
func (p *Page) Await(expression string) {
	p.t.Helper()
	for deadline := time.Now().Add(Timeout); time.Now().Before(deadline); {
		// The page checks the expression for up to a second. An exception means that an element does not exist yet.
		value, _ := p.evaluate(`new Promise((done) => {
			const end = performance.now() + 1000;
			const check = () => { let is = false; try { is = !!(` + expression + `); } catch {} if (is || performance.now() > end) done(is); else setTimeout(check, 20); };
			check();
		})`)
		if string(value) == "true" {
			return
		}
	}
	text, _ := p.evaluate(`location.href + "\n" + document.body.innerText.slice(0, 4000)`)
	p.t.Fatalf("not true within %s: %s\nproblems: %q\n%s", Timeout, expression, p.Problems(), text)
}

// Click waits for a visible, enabled element that matches a selector and whose text begins with text, and clicks it.
func (p *Page) Click(selector, text string) {
	p.t.Helper()
	find := fmt.Sprintf(`[...document.querySelectorAll(%q)].find((e) => e.innerText.trim().startsWith(%q) && e.offsetParent && !e.disabled)`, selector, text)
	p.Await(find)
	Evaluate[any](p, find+`.click()`)
}

// Fill replaces the value of an input, as if it was typed.
func (p *Page) Fill(selector, value string) {
	p.t.Helper()
	p.Await(fmt.Sprintf(`document.querySelector(%q)`, selector))
	Evaluate[any](p, fmt.Sprintf(`{ const e = document.querySelector(%q); e.value = %q; e.dispatchEvent(new Event("input", { bubbles: true })); }`, selector, value))
}

// Press presses a key.
func (p *Page) Press(key string) {
	p.t.Helper()
	text := ""
	if len(key) == 1 {
		text = key
	}
	p.call("Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": key, "text": text}, nil)
	p.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key}, nil)
}

// Screenshot writes a picture of the page to the test's artifacts, which go test keeps with -artifacts.
func (p *Page) Screenshot(t *testing.T, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(t.ArtifactDir(), name+".png"), p.shoot(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// shoot returns a picture of the page as PNG.
func (p *Page) shoot() []byte {
	p.t.Helper()
	var shot struct {
		Data []byte `json:"data"`
	}
	p.call("Page.captureScreenshot", map[string]any{"format": "png"}, &shot)
	return shot.Data
}
