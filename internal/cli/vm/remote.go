package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image/png"
	"io"
	"net/http"
	"strconv"

	gorilla "github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport/websocket"
	"k8s.io/streaming/pkg/httpstream"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/subresources"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/dryrun"
)

// remote calls the subresources of virtual machines through the API server.
type remote struct {
	config *rest.Config
	client *rest.RESTClient
	// dry is the mode of requests that change something. If nil, they are executed.
	dry *dryrun.Mode
}

func newRemote(config *rest.Config) (*remote, error) {
	config = rest.CopyConfig(config)
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	config.APIPath, config.GroupVersion = "/apis", &schema.GroupVersion{Group: subresources.Group, Version: subresources.Version}
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.AcceptContentTypes, config.ContentType = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	c, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", config.Host, err)
	}
	return &remote{config: config, client: c}, nil
}

// change sends a request that changes something, as the mode demands.
func (r *remote) change(ctx context.Context, request *rest.Request) error {
	switch {
	case r.dry == nil || !r.dry.On():
	case !r.dry.Server():
		return nil
	default:
		request = request.Param("dryRun", metav1.DryRunAll)
	}
	return explain(request.Do(ctx).Error())
}

func to(request *rest.Request, vm client.ObjectKey, subresource string) *rest.Request {
	return request.Namespace(vm.Namespace).Resource(subresources.Resource).Name(vm.Name).SubResource(subresource)
}

// reset resets a VM.
func (r *remote) reset(ctx context.Context, vm client.ObjectKey) error {
	return r.change(ctx, to(r.client.Post(), vm, "reset"))
}

// pause requests that a VM is paused.
func (r *remote) pause(ctx context.Context, vm client.ObjectKey) error {
	return r.change(ctx, to(r.client.Post(), vm, "pause"))
}

// unpause requests that a VM continues.
func (r *remote) unpause(ctx context.Context, vm client.ObjectKey) error {
	return r.change(ctx, to(r.client.Delete(), vm, "pause"))
}

// order requests a migration. An empty node means any.
func (r *remote) order(ctx context.Context, vm client.ObjectKey, node string) error {
	body, err := json.Marshal(subresources.MigrateOptions{NodeName: node})
	if err != nil {
		return err
	}
	return r.change(ctx, to(r.client.Post(), vm, "migrate").Body(body))
}

// cancel cancels the request.
func (r *remote) cancel(ctx context.Context, vm client.ObjectKey) error {
	return r.change(ctx, to(r.client.Delete(), vm, "migrate"))
}

// maxLastOutput is the maximum number of bytes that LastOutput reads. VM controllers send 64 KiB.
const maxLastOutput = 256 << 10

// LastOutput returns a function that reads the last output of a VM's console through an API server, with the
// permissions of the configuration.
func LastOutput(config *rest.Config) (func(ctx context.Context, vm client.ObjectKey) ([]byte, error), error) {
	calls, err := newRemote(config)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, vm client.ObjectKey) ([]byte, error) {
		body, err := calls.openLog(ctx, vm, false)
		if err != nil {
			return nil, err
		}
		defer body.Close()
		return io.ReadAll(io.LimitReader(body, maxLastOutput))
	}, nil
}

// OpenConsole opens the console of a VM, beginning with its last output, with the permissions of the configuration. The
// caller closes it.
func OpenConsole(ctx context.Context, config *rest.Config, vm client.ObjectKey) (*gorilla.Conn, error) {
	calls, err := newRemote(config)
	if err != nil {
		return nil, err
	}
	return calls.console(ctx, vm, true)
}

// Reset resets a VM with the permissions of the configuration.
func Reset(ctx context.Context, config *rest.Config, vm client.ObjectKey) error {
	calls, err := newRemote(config)
	if err != nil {
		return err
	}
	return calls.reset(ctx, vm)
}

// Migrate requests the live migration of a VM, and does not wait for it. An empty host means any. It returns an error if
// the VM is not running or cannot be migrated live.
func Migrate(ctx context.Context, c client.Client, config *rest.Config, vm client.ObjectKey, host string) error {
	calls, err := newRemote(config)
	if err != nil {
		return err
	}
	m := &migrate{client: c, orders: calls, key: vm, to: host}
	if err := m.check(); err != nil {
		return err
	}
	found, err := m.get(ctx)
	if err != nil {
		return err
	}
	m.pod = found.Status.ActivePodName
	return m.order(ctx, found)
}

// openLog returns the last console output and, with follow, new output. The caller closes it.
func (r *remote) openLog(ctx context.Context, vm client.ObjectKey, follow bool) (io.ReadCloser, error) {
	body, err := to(r.client.Get(), vm, "log").Param(subresources.FollowParameter, strconv.FormatBool(follow)).Stream(ctx)
	if err != nil {
		return nil, explain(err)
	}
	return body, nil
}

// log writes the last console output and, with follow, new output.
func (r *remote) log(ctx context.Context, vm client.ObjectKey, follow bool, out io.Writer) error {
	body, err := r.openLog(ctx, vm, follow)
	if err != nil {
		return err
	}
	defer body.Close()
	if _, err := io.Copy(out, body); err != nil && ctx.Err() == nil {
		return fmt.Errorf("cannot read the log: %w", err)
	}
	return nil
}

// console opens a console.
func (r *remote) console(ctx context.Context, vm client.ObjectKey, replay bool) (*gorilla.Conn, error) {
	return r.open(ctx, to(r.client.Get(), vm, "console").Param(subresources.ReplayParameter, strconv.FormatBool(replay)), subresources.ConsoleProtocol)
}

// forward connects to a TCP port of the guest.
func (r *remote) forward(ctx context.Context, vm client.ObjectKey, port uint16) (*gorilla.Conn, error) {
	return r.open(ctx, toPort(r.client.Get(), vm, port), subresources.PortForwardProtocol)
}

// checkForward returns why connections to a TCP port of the guest cannot be opened. It does not open one.
func (r *remote) checkForward(ctx context.Context, vm client.ObjectKey, port uint16) error {
	return explain(toPort(r.client.Get(), vm, port).Param("dryRun", metav1.DryRunAll).Do(ctx).Error())
}

// vnc connects a viewer to the display.
func (r *remote) vnc(ctx context.Context, vm client.ObjectKey) (*gorilla.Conn, error) {
	return r.open(ctx, to(r.client.Get(), vm, "vnc"), subresources.VNCProtocol)
}

// checkVNC returns why viewers cannot connect, or nil if they can. It does not connect a viewer.
func (r *remote) checkVNC(ctx context.Context, vm client.ObjectKey) error {
	return explain(to(r.client.Get(), vm, "vnc").Param("dryRun", metav1.DryRunAll).Do(ctx).Error())
}

// maxScreenshot is the maximum size of a screenshot, in bytes. VM controllers send less.
const maxScreenshot = 64 << 20

// screenshot returns a PNG image of the display.
func (r *remote) screenshot(ctx context.Context, vm client.ObjectKey) ([]byte, error) {
	body, err := to(r.client.Get(), vm, "screenshot").Stream(ctx)
	if err != nil {
		return nil, explain(err)
	}
	defer body.Close()
	picture, err := io.ReadAll(io.LimitReader(body, maxScreenshot))
	if err != nil {
		return nil, fmt.Errorf("the screenshot is incomplete: %w", err)
	}
	if _, err := png.DecodeConfig(bytes.NewReader(picture)); err != nil {
		return nil, fmt.Errorf("the response is not a PNG image: %w", err)
	}
	return picture, nil
}

func toPort(request *rest.Request, vm client.ObjectKey, port uint16) *rest.Request {
	return to(request, vm, "portforward").Param(subresources.PortParameter, strconv.Itoa(int(port)))
}

// open opens a WebSocket.
func (r *remote) open(ctx context.Context, path *rest.Request, protocol string) (*gorilla.Conn, error) {
	if err := path.Error(); err != nil {
		return nil, err // an invalid name
	}
	trip, holder, err := websocket.RoundTripperFor(r.config)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", r.config.Host, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, path.URL().String(), nil)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", r.config.Host, err)
	}
	conn, err := websocket.Negotiate(trip, holder, request, protocol)
	if err != nil {
		return nil, r.refused(ctx, err)
	}
	return conn, nil
}

// refused explains why there is no WebSocket.
func (r *remote) refused(ctx context.Context, err error) error {
	if upgrade, ok := errors.AsType[*httpstream.UpgradeFailureError](err); ok {
		err = upgrade.Cause
	}
	// An error that does not come from an API server does not report what is missing.
	if errors.Is(err, gorilla.ErrBadHandshake) {
		served := r.client.Get().AbsPath("/apis", subresources.Group, subresources.Version).Do(ctx).Error()
		if apierrors.IsNotFound(served) {
			return errNotServed
		}
	}
	return explain(err)
}

var errNotServed = fmt.Errorf("this cluster does not serve %s: its VM controller is not running or is too old; check the Pods of the VM controller", subresources.Group)

// explain returns what a general error means here.
func explain(err error) error {
	status, is := errors.AsType[*apierrors.StatusError](err)
	switch {
	case is && apierrors.IsNotFound(err) && !aboutVM(status.ErrStatus.Details):
		return errNotServed
	case apierrors.IsNotFound(err):
		return fmt.Errorf(`%w; "millwright vm list -A" shows all`, err)
	case apierrors.IsServiceUnavailable(err):
		return fmt.Errorf("the VM controller is not available: %w", err)
	}
	return err
}

// aboutVM reports whether details identify a VM or its subresource. They do not if the API server does not serve
// subresources of VMs.
func aboutVM(details *metav1.StatusDetails) bool {
	return details != nil && (details.Kind == subresources.Resource || details.Group == vmv1alpha1.SchemeGroupVersion.Group)
}
