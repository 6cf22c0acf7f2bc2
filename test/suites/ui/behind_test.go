package ui

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/browser"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/freeport"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// documented returns the code block of docs/tasks/ui.md that contains a text. In the block, it replaces the first text of each
// pair, which must occur, with the second text.
func documented(t *testing.T, text string, pairs ...string) string {
	t.Helper()
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/tasks/ui.md"))
	if err != nil {
		t.Fatal(err)
	}
	for i, block := range strings.Split(string(page), "\n```") {
		if i%2 == 0 || !strings.Contains(block, text) {
			continue
		}
		_, block, _ = strings.Cut(block, "\n") // the language
		for i := 0; i < len(pairs); i += 2 {
			if !strings.Contains(block, pairs[i]) {
				t.Fatalf("docs/tasks/ui.md: the block does not contain %q:\n%s", pairs[i], block)
			}
		}
		return strings.NewReplacer(pairs...).Replace(block)
	}
	t.Fatalf("docs/tasks/ui.md has no block with %q", text)
	return ""
}

// startProxy starts a proxy until the test is complete, and waits until it listens.
func startProxy(t *testing.T, address string, name string, args ...string) {
	t.Helper()
	command := exec.CommandContext(context.Background(), name, args...)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	proxy := program.StartOther(t, command)
	t.Cleanup(func() {
		proxy.Kill()
		if t.Failed() {
			t.Logf("%s printed:\n%s", filepath.Base(name), proxy.Output.Tail(100))
		}
	})
	gomega.NewWithT(t).Eventually(func() error {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err == nil {
			conn.Close()
		}
		return err
	}).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())
}

// findNginx returns the program, or skips the test.
func findNginx(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"nginx", "/usr/sbin/nginx"} { // the directory is not in the PATH of all users
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip(`nginx is not installed; as root, "make nginx" installs it`)
	return ""
}

// startNginx starts nginx with a server block.
func startNginx(t *testing.T, nginx, address, server string) {
	t.Helper()
	dir := t.TempDir()
	var paths strings.Builder
	for _, name := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&paths, "%s_temp_path %s/%s;\n", name, dir, name)
	}
	file := filepath.Join(dir, "nginx.conf")
	config := fmt.Sprintf("daemon off;\nmaster_process off;\npid %s/pid;\nevents {}\nhttp {\naccess_log off;\n%s%s\n}\n", dir, paths.String(), server)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	startProxy(t, address, nginx, "-p", dir, "-c", file, "-e", "stderr")
}

// machinesHost is the host name of the page in the browser, which resolves it to this host.
const machinesHost = "machines.localhost"

// nginxFor returns the documented server block for an address of nginx, with further replacements.
func nginxFor(t *testing.T, own certificate, address string, pairs ...string) string {
	t.Helper()
	return documented(t, "map $http_upgrade", append(pairs, "listen 443", "listen "+address, "machines.example.com", machinesHost,
		"/etc/nginx/tls.crt", own.certFile, "/etc/nginx/tls.key", own.keyFile)...)
}

// scaler contains the permissions to see and scale pools.
var scaler = rbacv1.PolicyRule{
	APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"machines", "machinesets", "machinedeployments", "machinedeployments/scale"},
	Verbs: []string{"get", "list", "watch", "update", "patch"},
}

// scale scales the pool whose page is open.
func scale(page *browser.Page, to int) {
	page.Click(".actions button", "Scale")
	page.Fill(".ask input", fmt.Sprint(to))
	page.Click(".ask footer button", "Scale")
	page.Await(fmt.Sprintf(`document.querySelector(".done").innerText === "scaled to %d"`, to))
	page.Await(fmt.Sprintf(`document.querySelector(".numbers").innerText.includes("of %d available")`, to)) // by the stream
}

// TestUI_WorksBehindNginx checks the page behind nginx, which terminates TLS, with the documented configuration. nginx keeps or
// removes the path of the address. A user logs in, sees rows, scales a pool, and logs out.
func TestUI_WorksBehindNginx(t *testing.T) {
	tier.All(t)
	nginx := findNginx(t)
	for name, path := range map[string]string{"keeps the path": "", "removes the path": "/"} {
		t.Run(name, func(t *testing.T) {
			page := browser.Open(t)
			page.IgnoreCertificateErrors()
			e := env.New(t)
			createPool(t, e)
			address, own := freeport.Address(t), newCertificate(t, machinesHost)
			url := fmt.Sprintf("https://%s:%d/machines/", machinesHost, address.Port())
			p := startShared(t, e, url)
			_, token := p.account("viewer", scaler)
			startNginx(t, nginx, address.String(), nginxFor(t, own, address.String(),
				"location / ", "location /machines/ ", "https://millwright-ui.millwright-system.svc", "https://"+p.host+path))

			page.Navigate(url)
			page.Fill(".login input[type=password]", token)
			page.Fill(".login input[type=text]", e.Namespace)
			page.Click(".login button", "Log in")
			page.Await(tiles("new") + ` === 1 && document.querySelector(".link").innerText.endsWith(":viewer")`)
			browser.Evaluate[any](page, fmt.Sprintf(`location.hash = "#/pool/%s/pool"`, e.Namespace))
			scale(page, 2)
			page.Click("header button", "Log out")
			page.Await(`document.querySelector(".login").innerText.includes("You have logged out.")`)
		})
	}
}

// buildOAuth2Proxy returns the path of the program.
func buildOAuth2Proxy(t *testing.T) string {
	t.Helper()
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "oauth2-proxy")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s", "-o", file, "github.com/oauth2-proxy/oauth2-proxy/v7")
	build.Dir = filepath.Join(root, "test/suites/ui/oauth2-proxy")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, text)
	}
	return file
}

// withOpenID makes control planes that start later accept the tokens of a provider, with the documented flags.
func withOpenID(t *testing.T, of *provider, own certificate) {
	t.Helper()
	binaries, err := env.Binaries()
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(binaries + "/")
	if err != nil {
		t.Fatal(err)
	}
	const apiServer = "kube-apiserver"
	dir := t.TempDir()
	for _, entry := range entries {
		if entry.Name() != apiServer {
			err = os.Symlink(filepath.Join(binaries, entry.Name()), filepath.Join(dir, entry.Name()))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	flags := strings.Fields(documented(t, "--oidc-username-claim", "https://login.example.com", of.issuer))
	script := fmt.Sprintf("#!/bin/sh\nexec %s \"$@\" %s --oidc-ca-file=%s\n", filepath.Join(binaries, apiServer), strings.Join(flags, " "), own.certFile)
	if err := os.WriteFile(filepath.Join(dir, apiServer), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_BINARIES", dir)
}

// startOAuth2Proxy starts oauth2-proxy with the documented arguments in front of a page, and returns its address. url is the
// address of the page in browsers.
func startOAuth2Proxy(t *testing.T, of *provider, own certificate, page, url string) (address string) {
	t.Helper()
	dir, address := t.TempDir(), freeport.Address(t).String()
	for _, name := range []string{"client-secret", "cookie-secret"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(rand.Text() + rand.Text())[:32], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var container struct{ Args []string }
	text := documented(t, "--cookie-refresh", "https://login.example.com", of.issuer, "/etc/oauth2-proxy", dir, "https://machines.example.com/", url,
		"0.0.0.0:4180", address, "10.0.0.0/8", "127.0.0.0/8", "https://millwright-ui.millwright-system.svc", page, "--cookie-refresh=4m", "--cookie-refresh=20s")
	if err := yaml.Unmarshal([]byte(text), &container); err != nil {
		t.Fatal(err)
	}
	startProxy(t, address, buildOAuth2Proxy(t), append(container.Args, "--provider-ca-file="+own.certFile)...)
	return address
}

// logInAtProvider logs a user in from the page of oauth2-proxy.
func logInAtProvider(page *browser.Page, user string) {
	page.Click("button", "Sign in with OpenID Connect")
	page.Click("a", user)
}

// TestUI_WorksBehindOAuth2Proxy checks the page behind nginx and oauth2-proxy with the documented configurations. Two users have
// different permissions. An open page continues when its token has expired. A user who has logged out returns to the same view
// after the next login.
func TestUI_WorksBehindOAuth2Proxy(t *testing.T) {
	tier.All(t)
	page, other := browser.Open(t), browser.Open(t)
	nginx, own := findNginx(t), newCertificate(t, machinesHost)
	const jane, john = "jane@example.com", "john@example.com"
	openID := startProvider(t, own, jane, john)
	withOpenID(t, openID, own)
	e := env.New(t, env.WithOwn())
	createPool(t, e)
	for _, ingress := range fixture.Objects(t, []byte(documented(t, "kind: Ingress", "millwright-system", e.Namespace))) {
		if err := e.Client.Create(t.Context(), ingress, client.DryRunAll); err != nil {
			t.Error(err)
		}
	}
	address := freeport.Address(t)
	url := fmt.Sprintf("https://%s:%d/", machinesHost, address.Port())
	p := startShared(t, e, url)
	p.allow(jane, scaler)
	proxy := startOAuth2Proxy(t, openID, own, "https://"+p.host, url)
	location := documented(t, "proxy_buffer_size", "oauth2-proxy.millwright-system.svc:4180", proxy)
	direct := documented(t, "map $http_upgrade")
	direct = direct[strings.Index(direct, "    location"):strings.LastIndex(direct, "}")]
	startNginx(t, nginx, address.String(), nginxFor(t, own, address.String(), direct, location))

	for _, b := range []*browser.Page{page, other} {
		b.IgnoreCertificateErrors()
	}
	pool := url + "?namespace=" + e.Namespace + "#/pool/" + e.Namespace + "/pool"
	page.Navigate(pool)
	logInAtProvider(page, jane)
	page.Await(`document.querySelector(".link").innerText.endsWith("` + jane + `")`)
	countStreams(page)
	scale(page, 2)
	other.Navigate(url + "?namespace=" + e.Namespace)
	logInAtProvider(other, john)
	other.Await(`document.querySelector("main").innerText.includes("You have no permission to list Machine") && document.querySelector(".link").innerText.endsWith("` + john + `")`)
	// The session of the first token is closed.
	page.Await(`streams > 0 && document.querySelector(".link.open")`)
	scale(page, 3)

	browser.Evaluate[any](page, `fetch("/oauth2/sign_out", { redirect: "manual" }).then(() => null)`)
	page.Await(`document.querySelector(".login").innerText.includes("your session has expired")`)
	page.Click(".login button", "Log in again")
	logInAtProvider(page, jane)
	page.Await(`document.querySelector(".numbers").innerText.includes("of 3 available")`)

	browser.Evaluate[any](page, `fetch("/oauth2/sign_out", { redirect: "manual" }).then(() => null)`)
	page.Navigate(url + "console.html?namespace=" + e.Namespace + "#" + e.Namespace + "/vm")
	logInAtProvider(page, jane)
	page.Await(`document.getElementById("state").innerText.includes("` + jane + `")`) // the API server's response names the user
}

// allow grants a user permissions in the namespace.
func (p *sharedPage) allow(user string, rules ...rbacv1.PolicyRule) {
	p.t.Helper()
	at := metav1.ObjectMeta{Namespace: p.Namespace, Name: "user"}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: at, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: at.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	for _, err := range []error{p.Client.Create(p.t.Context(), &rbacv1.Role{ObjectMeta: at, Rules: rules}), p.Client.Create(p.t.Context(), binding)} {
		if err != nil {
			p.t.Fatal(err)
		}
	}
}

// countStreams counts the streams that a page opens from now on, in the variable streams.
func countStreams(page *browser.Page) {
	browser.Evaluate[any](page, `{ window.streams = 0; window.WebSocket = class extends WebSocket { constructor(...args) { super(...args); streams++; } }; }`)
}
