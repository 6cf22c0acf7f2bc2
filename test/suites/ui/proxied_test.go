package ui

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/browser"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
)

// ownAddress returns an IPv4 address of this host that is not a loopback one: the API server refuses those for endpoints. If
// there is none, the test is skipped.
func ownAddress(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		if of, ok := address.(*net.IPNet); ok && of.IP.To4() != nil && of.IP.IsGlobalUnicast() {
			return of.IP.String()
		}
	}
	t.Skip("this host has only loopback addresses, which the API server refuses for endpoints")
	return ""
}

// createService creates the Service of the page, and like the controllers of a cluster, its endpoint: a Pod at this host.
func (p *sharedPage) createService() {
	p.t.Helper()
	at := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: p.Namespace, Name: name} }
	address, port, name, ready := ownAddress(p.t), int32(p.port), "https", true
	pod := &corev1.Pod{ObjectMeta: at("millwright-ui-0"), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "ui", Image: "ui"}}}}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: at("millwright-ui-0"), AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}}}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: "millwright-ui"}
	slice.Endpoints = []discoveryv1.Endpoint{{
		Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name},
	}}
	for _, err := range []error{
		p.Client.Create(p.t.Context(), &corev1.Service{ObjectMeta: at("millwright-ui"), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: name, Port: 443}}}}),
		p.Client.Create(p.t.Context(), pod),
		p.Client.Create(p.t.Context(), slice),
	} {
		if err != nil {
			p.t.Fatal(err)
		}
	}
	pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, address, []corev1.PodIP{{IP: address}}
	if err := p.Client.Status().Update(p.t.Context(), pod); err != nil {
		p.t.Fatal(err)
	}
}

// kubectlProxy runs "kubectl proxy" at a port until the test is complete. Its user has no other permissions.
func (p *sharedPage) kubectlProxy(port int) {
	p.t.Helper()
	kubeconfig := filepath.Join(p.t.TempDir(), "user")
	env.WriteKubeconfig(p.t, kubeconfig, p.UserWith(p.t, "test/suites/ui/testdata/proxy-role.yaml"))
	binaries, err := env.Binaries()
	if err != nil {
		p.t.Fatal(err)
	}
	command := exec.CommandContext(context.Background(), filepath.Join(binaries, "kubectl"), "proxy", "--kubeconfig", kubeconfig, "--port", fmt.Sprint(port))
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	proxy := program.StartOther(p.t, command)
	p.t.Cleanup(proxy.Kill)
	gomega.NewWithT(p.t).Eventually(proxy.Output.String).WithTimeout(env.WaitTimeout).Should(gomega.ContainSubstring("Starting to serve"))
}

// TestUI_WorksThroughAPIServer opens the page in a browser, through "kubectl proxy" and the API server's proxy to its Service. The
// user logs in, sees rows and an explanation, scales a pool, and logs out. The users of the proxy and of the page are different, and
// have the documented permissions.
func TestUI_WorksThroughAPIServer(t *testing.T) {
	page := browser.Open(t)
	e := env.New(t)
	createPool(t, e)
	port, err := e.ControlPlane.PortFor(e.Namespace+"-proxy", 0)
	if err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("http://localhost:%d/api/v1/namespaces/%s/services/https:millwright-ui:https/proxy/", port, e.Namespace)
	p := startShared(t, e, url)
	p.createService()
	p.kubectlProxy(port)
	_, token := p.account("viewer", rbacv1.PolicyRule{
		APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"machines", "machinesets", "machinedeployments", "machinedeployments/scale"},
		Verbs: []string{"get", "list", "watch", "update", "patch"},
	})

	page.Navigate(strings.TrimSuffix(url, "/")) // the page adds the slash, without which relative links fail
	page.Fill(".login input[type=password]", token)
	page.Fill(".login input[type=text]", e.Namespace)
	page.Click(".login button", "Log in")
	page.Await(tiles("new") + ` === 1 && document.querySelector(".link").innerText.endsWith(":viewer")`)
	page.Click(".tile", "pool-1-a")
	page.Await(`document.querySelector(".conclusion")?.innerText.includes("pool-1-a")`)
	page.Screenshot(t, "proxied")
	page.Click(".crumb a", "pool")
	page.Click(".actions button", "Scale")
	page.Fill(".ask input", "2")
	page.Click(".ask footer button", "Scale")
	page.Await(`document.querySelector(".done").innerText === "scaled to 2"`)
	page.Await(`document.querySelector(".numbers").innerText.includes("of 2 available")`) // by the stream
	page.Click("header button", "Log out")
	page.Await(`document.querySelector(".login").innerText.includes("You have logged out.")`)
	for _, problem := range page.Problems() {
		if !strings.Contains(problem, "401 (Unauthorized)") && !strings.Contains(problem, "403 (Forbidden)") { // expected before the login, and for kinds that the user may not read
			t.Errorf("the page reports: %s", problem)
		}
	}
}
