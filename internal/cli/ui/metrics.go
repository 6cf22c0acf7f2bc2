package ui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/ui"
	"github.com/millwright-dev/millwright/internal/unixsocket"
)

// hints are what a user can do if the metrics of Pods cannot be read.
type hints struct {
	// lease is for a namespace without leases, and other for all other problems.
	lease, other string
}

const setMetricsURL = "set --metrics-url to the address of the manager's metrics, such as http://127.0.0.1:10259/metrics"

var (
	ownHints    = hints{lease: "choose the namespace of the machines with --namespace, or " + setMetricsURL, other: setMetricsURL}
	sharedHints = hints{lease: "log in with the namespace of the machines", other: "ask an administrator of the cluster"}
)

// validMetricsURL reports whether a URL can be read without credentials.
func validMetricsURL(text string) bool {
	of, err := url.Parse(text)
	return err == nil && (of.Scheme == "http" || of.Scheme == "https") && of.Host != "" && of.User == nil
}

// metrics returns the function that reads the metrics of the manager; nil if there are none. namespace is that of the
// machines.
func (f *flags) metrics(config *rest.Config, control client.Reader, namespace string) (func(context.Context) (ui.Metrics, error), error) {
	switch {
	case f.metricsURL == connect.None:
		return nil, nil
	case f.metricsURL != "":
		return fromURL(f.metricsURL, f.metricsURL, nil), nil
	}
	if socket := f.LocalMetrics(); socket != "" {
		dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return unixsocket.Dial(ctx, socket) }
		return fromURL("http://localhost/metrics", "the manager of the local cluster", dial), nil
	}
	pods, err := newPods(config, control, namespace)
	if err != nil {
		return nil, err
	}
	return pods.read, nil
}

// fromURL reads metrics from an address, which messages call source. It sends no credentials and follows no redirects.
// If dial is nil, it connects to the host of the address.
func fromURL(address, source string, dial func(ctx context.Context, network, address string) (net.Conn, error)) func(context.Context) (ui.Metrics, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if dial != nil {
		transport.DialContext, transport.Proxy = dial, nil
	}
	direct := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return func(ctx context.Context) (ui.Metrics, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return ui.Metrics{}, err
		}
		response, err := direct.Do(request)
		if err != nil {
			return ui.Metrics{}, fmt.Errorf("cannot read the metrics of the manager: %w; check that it runs, and --metrics-url", err)
		}
		if response.StatusCode != http.StatusOK {
			_ = response.Body.Close() // it is not read
			return ui.Metrics{}, fmt.Errorf("cannot read the metrics of the manager: %s responded with %s; check --metrics-url", source, response.Status)
		}
		return ui.Metrics{Source: source, Texts: []io.ReadCloser{response.Body}}, nil
	}
}

// pods reads the metrics of the Pods that hold the leases of a namespace, through the API server.
type pods struct {
	control   client.Reader
	calls     rest.Interface
	namespace string
	hints     hints
}

func newPods(config *rest.Config, control client.Reader, namespace string) (*pods, error) {
	config = rest.CopyConfig(config)
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper { return withoutRedirects{inner} })
	config.GroupVersion, config.APIPath = &corev1.SchemeGroupVersion, "/api"
	config.NegotiatedSerializer = clientgoscheme.Codecs.WithoutConversion()
	calls, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", config.Host, err)
	}
	return &pods{control, calls, namespace, ownHints}, nil
}

// withoutRedirects refuses requests that follow a redirect. The API server passes redirects of Pods on, and a client of
// Kubernetes sends its credentials to each server to which they lead.
type withoutRedirects struct{ inner http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (w withoutRedirects) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Response != nil {
		return nil, errors.New("the Pod responded with a redirect, which is not followed")
	}
	return w.inner.RoundTrip(r)
}

// read implements the Metrics of ui.Options.
func (p *pods) read(ctx context.Context) (ui.Metrics, error) {
	holders, err := p.holders(ctx)
	if err != nil {
		return ui.Metrics{}, err
	}
	all := ui.Metrics{Source: "Pods " + strings.Join(holders, ", ")}
	for _, name := range holders {
		if err := p.add(ctx, name, &all); err != nil {
			all.Close()
			return ui.Metrics{}, err
		}
	}
	return all, nil
}

// holders returns the names of the Pods that hold the leases. The two halves of a manager can be one Pod or two.
func (p *pods) holders(ctx context.Context) ([]string, error) {
	var names []string
	for _, name := range []string{v1alpha1.LeaseMachineController, v1alpha1.LeaseMachineControllerManager} {
		lease := &coordinationv1.Lease{}
		err := p.control.Get(ctx, client.ObjectKey{Namespace: p.namespace, Name: name}, lease)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("cannot read which Pod is the manager: %w; %s", err, p.hints.other)
		}
		if holder := lease.Spec.HolderIdentity; err == nil && holder != nil && *holder != "" {
			// The identity is the host name, which is that of the Pod, and a random part.
			pod, _, _ := strings.Cut(*holder, "_")
			names = append(names, pod)
		}
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) == 0 {
		return nil, fmt.Errorf("no manager has a lease in namespace %s; %s", p.namespace, p.hints.lease)
	}
	return names, nil
}

// portNames are the names of the ports with metrics.
var portNames = []string{"metrics", "providermetrics"}

// add adds the responses of a Pod.
func (p *pods) add(ctx context.Context, name string, to *ui.Metrics) error {
	pod := &corev1.Pod{}
	if err := p.control.Get(ctx, client.ObjectKey{Namespace: p.namespace, Name: name}, pod); err != nil {
		return fmt.Errorf("cannot read Pod %s of the manager: %w; %s", name, err, p.hints.other)
	}
	found := false
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			if !slices.Contains(portNames, port.Name) {
				continue
			}
			found = true
			text, err := p.calls.Get().Namespace(p.namespace).Resource("pods").SubResource("proxy").
				Name(fmt.Sprintf("%s:%d", name, port.ContainerPort)).Suffix("metrics").Stream(ctx)
			if err != nil {
				return fmt.Errorf("cannot read the metrics of Pod %s through the API server, which needs the permission to get pods/proxy: %w; %s", name, err, p.hints.other)
			}
			to.Texts = append(to.Texts, text)
		}
	}
	if !found {
		return fmt.Errorf("cannot read the metrics of Pod %s: it has no port named %s; %s", name, strings.Join(portNames, " or "), p.hints.other)
	}
	return nil
}
