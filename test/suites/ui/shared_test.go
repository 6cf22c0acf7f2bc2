package ui

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	"github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// insecure are the settings for the self-signed certificate of the page.
var insecure = &tls.Config{InsecureSkipVerify: true}

// sharedPage is a page for many users.
type sharedPage struct {
	*env.Env
	t    *testing.T
	port int
	host string
}

// startShared starts a page for many users. Its kubeconfig has the credentials of an administrator, which are not used. urls are
// further addresses of the page.
func startShared(t *testing.T, e *env.Env, urls ...string) *sharedPage {
	t.Helper()
	port, err := e.ControlPlane.PortFor(e.Namespace+"-ui", 0)
	if err != nil {
		t.Fatal(err)
	}
	admin := filepath.Join(t.TempDir(), "admin")
	env.WriteKubeconfig(t, admin, e.Admin)
	p := &sharedPage{Env: e, t: t, port: port, host: fmt.Sprintf("localhost:%d", port)}
	args := []string{"ui", "--in-cluster", "--kubeconfig", admin, "--port", fmt.Sprint(port), "--url", "https://" + p.host + "/"}
	for _, url := range urls {
		args = append(args, "--url", url)
	}
	start(t, args...)
	gomega.NewWithT(t).Eventually(func() error {
		_, _, err := p.send(http.MethodGet, "readyz", "", "")
		return err
	}).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())
	return p
}

// account creates a ServiceAccount with these permissions in the namespace, and returns it and a token.
func (p *sharedPage) account(name string, rules ...rbacv1.PolicyRule) (account *corev1.ServiceAccount, token string) {
	p.t.Helper()
	at := metav1.ObjectMeta{Namespace: p.Namespace, Name: name}
	account = &corev1.ServiceAccount{ObjectMeta: at}
	request := &authenticationv1.TokenRequest{}
	for _, err := range []error{
		p.Client.Create(p.t.Context(), account),
		p.Client.Create(p.t.Context(), &rbacv1.Role{ObjectMeta: at, Rules: rules}),
		p.Client.Create(p.t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: at, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: p.Namespace, Name: name}},
		}),
		p.Client.SubResource("token").Create(p.t.Context(), account, request),
	} {
		if err != nil {
			p.t.Fatal(err)
		}
	}
	return account, request.Status.Token
}

// send sends a request as a script of the page does.
func (p *sharedPage) send(method, path, cookie, body string) (*http.Response, string, error) {
	request, err := http.NewRequestWithContext(p.t.Context(), method, "https://"+p.host+"/"+path, strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	request.Header.Set("Origin", "https://"+p.host)
	request.Header.Set("Cookie", cookie)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: insecure, DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response, string(text), err
}

// logIn returns the cookie of a session.
func (p *sharedPage) logIn(token string) string {
	p.t.Helper()
	response, text, err := p.send(http.MethodPost, "api/login", "", fmt.Sprintf(`{"token":%q,"namespace":%q}`, token, p.Namespace))
	if err != nil || response.StatusCode != http.StatusOK || len(response.Cookies()) != 1 {
		p.t.Fatalf("login: %v %s %v", response, text, err)
	}
	return response.Cookies()[0].String()
}

// stream opens the stream of rows.
func (p *sharedPage) stream(cookie string) *websocket.Conn {
	p.t.Helper()
	dialer := &websocket.Dialer{TLSClientConfig: insecure}
	conn, response, err := dialer.DialContext(p.t.Context(), "wss://"+p.host+"/api/stream", http.Header{"Origin": {"https://" + p.host}, "Cookie": {cookie}})
	if err != nil {
		p.t.Fatal(err)
	}
	response.Body.Close()
	p.t.Cleanup(func() { conn.Close() })
	return conn
}

// readUntil returns the messages of a stream until they contain all texts, or the reason for which the stream was closed.
// Without texts, it reads until then.
func readUntil(conn *websocket.Conn, texts ...string) (messages string, err error) {
	missing := func(text string) bool { return !strings.Contains(messages, text) }
	for len(texts) == 0 || slices.ContainsFunc(texts, missing) {
		_, message, err := conn.ReadMessage()
		if err != nil {
			return messages, err
		}
		messages += string(message)
	}
	return messages, nil
}

// TestUI_UsersWithDifferentPermissionsShareAPage checks that two users see at the same time what their own tokens permit,
// and can change nothing else, although the kubeconfig of the page is that of an administrator. The session of a token that
// is revoked is closed.
func TestUI_UsersWithDifferentPermissionsShareAPage(t *testing.T) {
	tier.All(t)
	e := env.New(t)
	createPool(t, e)
	p := startShared(t, e)
	read := func(resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{v1alpha1.GroupName}, Resources: resources, Verbs: []string{"get", "list", "watch"}}
	}
	reader, readerToken := p.account("reader", read("machines", "machinesets", "machinedeployments"))
	_, otherToken := p.account("other", read("machinesets"))
	readerCookie, otherCookie := p.logIn(readerToken), p.logIn(otherToken)
	readerStream, otherStream := p.stream(readerCookie), p.stream(otherCookie)

	machine := `"machine/` + p.Namespace + `/pool-1-a"`
	if _, err := readUntil(readerStream, machine); err != nil {
		t.Fatalf("the reader does not see the machine: %v", err)
	}
	seen, err := readUntil(otherStream, `"id":"kind/Machine","name":"Machine","access":"forbidden"`, `"set/`+p.Namespace+`/pool-1"`)
	if err != nil || strings.Contains(seen, machine) {
		t.Errorf("the other user sees %s, %v", seen, err)
	}
	p.checkUser(readerCookie, "reader", true)
	p.checkUser(otherCookie, "other", false)

	if err := p.Client.Delete(t.Context(), reader); err != nil {
		t.Fatal(err)
	}
	closed := (*websocket.CloseError)(nil)
	if _, err := readUntil(readerStream); !errors.As(err, &closed) || closed.Text != "The token has expired or was revoked. Log in again." {
		t.Errorf("the stream of the revoked token: %v", err)
	}
	p.want(http.StatusUnauthorized, http.MethodGet, "api/about", readerCookie, "")
	p.want(http.StatusOK, http.MethodGet, "api/about", otherCookie, "")
	if text := p.want(http.StatusUnauthorized, http.MethodPost, "api/login", "", fmt.Sprintf(`{"token":%q}`, readerToken)); !strings.Contains(text, "The API server rejects the token") {
		t.Errorf("login with the revoked token: %s", text)
	}
}

// checkUser checks the user of a session, who cannot scale the pool, and whether this user can read its Machine.
func (p *sharedPage) checkUser(cookie, name string, reads bool) {
	p.t.Helper()
	about := map[string]any{}
	text := p.want(http.StatusOK, http.MethodGet, "api/about", cookie, "")
	if err := json.Unmarshal([]byte(text), &about); err != nil || about["user"] != "system:serviceaccount:"+p.Namespace+":"+name {
		p.t.Errorf("the user of %s: %s %v", name, text, err)
	}
	p.want(http.StatusForbidden, http.MethodPost, "api/do", cookie, `{"action":"scale","namespace":"`+p.Namespace+`","name":"pool","replicas":7}`)
	response, text, err := p.send(http.MethodGet, "api/yaml?kind=machine&namespace="+p.Namespace+"&name=pool-1-a", cookie, "")
	if err != nil || (response.StatusCode == http.StatusOK) != reads {
		p.t.Errorf("%s reads the machine: %s %v", name, text, err)
	}
}

// want sends a request, checks the status of the response, and returns its body.
func (p *sharedPage) want(status int, method, path, cookie, body string) (text string) {
	p.t.Helper()
	response, text, err := p.send(method, path, cookie, body)
	if err != nil || response.StatusCode != status {
		p.t.Errorf("%s %s: %v %s %v, want status %d", method, path, response, text, err, status)
	}
	return text
}
