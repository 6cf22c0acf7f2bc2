package vm

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver/jsonlimit"
)

// hostile starts an API server and returns the cluster of a class whose Secret has a kubeconfig for it.
func hostile(t *testing.T, handler http.HandlerFunc) *infrastructure {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	made, err := newKubeconfigClient(kubeconfigOf(t, clientcmdapi.Cluster{Server: server.URL, CertificateAuthorityData: authority}, goodUser))
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// sending returns an API server that sends a response, and then a piece again and again, up to 256 MiB. The counter is the
// number of bytes that it could send.
func sending(contentType string, code int, begin, piece string) (http.HandlerFunc, *atomic.Int64) {
	sent := &atomic.Int64{}
	pieces := bytes.Repeat([]byte(piece), 1<<20/len(piece))
	return func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Type", contentType)
		out.WriteHeader(code)
		_, _ = io.WriteString(out, begin)
		for range 256 {
			n, err := out.Write(pieces)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}, sent
}

// requests are the kinds of requests that the driver sends.
var requests = map[string]func(context.Context, *infrastructure) error{
	"object": func(ctx context.Context, cluster *infrastructure) error {
		return cluster.Get(ctx, client.ObjectKey{Namespace: "n", Name: "vm"}, &vmv1alpha1.VirtualMachine{})
	},
	"built-in object": func(ctx context.Context, cluster *infrastructure) error {
		return cluster.Get(ctx, client.ObjectKey{Namespace: "n", Name: "vm"}, &corev1.Secret{})
	},
	"creation": func(ctx context.Context, cluster *infrastructure) error {
		return cluster.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "vm"}})
	},
	"deletion": func(ctx context.Context, cluster *infrastructure) error {
		return cluster.Delete(ctx, &vmv1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "vm"}})
	},
	"list": func(ctx context.Context, cluster *infrastructure) error {
		return cluster.eachPage(ctx, &vmv1alpha1.VirtualMachineList{}, func() {}, client.InNamespace("n"))
	},
	"hosts": func(ctx context.Context, cluster *infrastructure) error {
		_, err := domainsOf(ctx, cluster, client.MatchingLabels{vmv1alpha1.HostKey: ""})
		return err
	},
	"watch": func(ctx context.Context, cluster *infrastructure) error {
		changes, err := cluster.Watch(ctx, &vmv1alpha1.VirtualMachineList{}, client.InNamespace("n"))
		if err != nil {
			return err
		}
		defer changes.Stop()
		for event := range changes.ResultChan() {
			if event.Type != watch.Error {
				return nil
			}
		}
		return errors.New("the watch is closed")
	},
}

// TestUntrustedServer_ResponsesAreLimited: whatever an API server that the author of a class chose sends, the driver stops
// reading.
func TestUntrustedServer_ResponsesAreLimited(t *testing.T) {
	const ok, refused = http.StatusOK, http.StatusForbidden
	for name, from := range map[string]struct {
		contentType  string
		code         int
		begin, piece string
	}{
		"white space":            {"application/json", ok, "", " "},
		"a long string":          {"application/json", ok, `{"type":"ADDED","object":{"metadata":{"name":"`, "a"},
		"a long text":            {"text/plain", ok, "", "a"},
		"protobuf":               {"application/vnd.kubernetes.protobuf", ok, "k8s\x00", "\x0a\x00"},
		"YAML":                   {"application/yaml", ok, "", "- {}\n"},
		"an error":               {"application/json", refused, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"`, "a"},
		"many errors":            {"application/json", refused, "", `{"kind":"Status","apiVersion":"v1"}`},
		"an error as a text":     {"text/html", refused, "", "a"},
		"an error in protobuf":   {"application/vnd.kubernetes.protobuf", refused, "k8s\x00", "\x0a\x00"},
		"an error in CBOR":       {"application/cbor", refused, "\xd9\xd9\xf7", "\x80"},
		"an error without types": {"", refused, "", "\x80"},
	} {
		for what, request := range requests {
			switch {
			case what == "object" || what == "watch": // each response
			case name == "a long string" || name == "an error in protobuf": // to each request
			default:
				continue
			}
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				handler, sent := sending(from.contentType, from.code, from.begin, from.piece)
				err := request(t.Context(), hostile(t, handler))
				const buffers = 32 << 20 // of the kernel
				if err == nil || sent.Load() > maxObject+maxUnread+buffers {
					t.Errorf("the driver read %d MiB, error: %v", sent.Load()>>20, err)
				}
				if text := from.contentType != "application/json"; text && from.code == refused && !apierrors.IsForbidden(err) {
					t.Errorf("error: %v, want Forbidden", err)
				}
			})
		}
	}
}

// TestUntrustedServer_DecodedResponsesAreLimited: a short response does not take much memory when it is decoded.
func TestUntrustedServer_DecodedResponsesAreLimited(t *testing.T) {
	many := func(s string, n int) string { return strings.TrimSuffix(strings.Repeat(s+",", n), ",") }
	for name, tc := range map[string]struct {
		response string
		allowed  []string // the requests for which it is a valid response
	}{
		"empty items":   {`{"apiVersion":"vm.metropolis.monogon.dev/v1alpha1","kind":"VirtualMachineList","items":[` + many("{}", 1<<18) + `]}`, nil},
		"some items":    {`{"apiVersion":"vm.metropolis.monogon.dev/v1alpha1","kind":"VirtualMachineList","items":[` + many("{}", untrustedPage+1) + `]}`, nil},
		"a page":        {`{"apiVersion":"vm.metropolis.monogon.dev/v1alpha1","kind":"VirtualMachineList","items":[` + many("{}", untrustedPage) + `]}`, []string{"list"}},
		"empty disks":   {`{"apiVersion":"vm.metropolis.monogon.dev/v1alpha1","kind":"VirtualMachine","spec":{"dataDisks":[` + many("{}", 1<<18) + `]}}`, nil},
		"empty owners":  {`{"metadata":{"ownerReferences":[` + many("{}", 1<<18) + `]}}`, nil},
		"nested arrays": {`{"a":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`, nil},
	} {
		for _, what := range []string{"object", "list", "hosts", "watch"} {
			cluster := hostile(t, func(out http.ResponseWriter, _ *http.Request) {
				out.Header().Set("Content-Type", "application/json")
				if what == "watch" {
					_, _ = fmt.Fprintf(out, `{"type":"ADDED","object":%s}`, tc.response)
					return
				}
				_, _ = io.WriteString(out, tc.response)
			})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := requests[what](t.Context(), cluster)
			runtime.ReadMemStats(&after)
			if got := after.TotalAlloc - before.TotalAlloc; got > 20*maxObject {
				t.Errorf("%s, %s: %d MiB are allocated", name, what, got>>20)
			}
			if name != "a page" && name != "some items" && err == nil || name == "a page" && what == "list" && err != nil {
				t.Errorf("%s, %s: error %v", name, what, err)
			}
			if limit, _ := errors.AsType[*jsonlimit.Error](err); name == "some items" && what == "list" && limit == nil {
				t.Errorf("%s: error %v", name, err)
			}
		}
	}
}

// TestUntrustedServer_ListsAreLimitedInTotal: a list whose pages do not end is an error.
func TestUntrustedServer_ListsAreLimitedInTotal(t *testing.T) {
	pages := atomic.Int64{}
	items := strings.TrimSuffix(strings.Repeat("{},", untrustedPage), ",")
	cluster := hostile(t, func(out http.ResponseWriter, request *http.Request) {
		if want := fmt.Sprint(untrustedPage); request.URL.Query().Get("limit") != want {
			t.Errorf("the limit is %q, want %s", request.URL.Query().Get("limit"), want)
		}
		out.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(out, `{"apiVersion":"vm.metropolis.monogon.dev/v1alpha1","kind":"VirtualMachineList","metadata":{"continue":"%d"},"items":[%s]}`, pages.Add(1), items)
	})
	if err := requests["list"](t.Context(), cluster); err == nil || pages.Load() > maxListed/untrustedPage+1 {
		t.Errorf("%d pages were read, error: %v", pages.Load(), err)
	}
}

// TestUntrustedServer_NamesAreLimited: names that no API server stores are left out of a list, which is kept.
func TestUntrustedServer_NamesAreLimited(t *testing.T) {
	for name, change := range map[string]func(*vmv1alpha1.VirtualMachine, *identity){
		"a long name":       func(_ *vmv1alpha1.VirtualMachine, of *identity) { of.Machine = strings.Repeat("m", 254) },
		"a long UUID":       func(vm *vmv1alpha1.VirtualMachine, _ *identity) { vm.Spec.UUID += "0" },
		"another namespace": func(vm *vmv1alpha1.VirtualMachine, _ *identity) { vm.Namespace = "other" },
		"":                  func(*vmv1alpha1.VirtualMachine, *identity) {},
	} {
		of := identity{APIGroup: "g", Namespace: "machines", Machine: "m"}
		listed := vmv1alpha1.VirtualMachine{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n"},
			Spec:       vmv1alpha1.VirtualMachineSpec{UUID: "00000000-0000-0000-0000-000000000000"},
		}
		change(&listed, &of)
		listed.Name, listed.Annotations = of.name(), map[string]string{AnnotationIdentity: of.annotation()}
		cluster := interceptor.NewClient(nil, interceptor.Funcs{
			List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
				list.(*vmv1alpha1.VirtualMachineList).Items = []vmv1alpha1.VirtualMachine{listed}
				return nil
			},
		})
		spec := &providerSpec{Tags: map[string]string{clusterTag + "c": "", roleTag + "r": ""}}
		c := call{cluster: &infrastructure{WithWatch: cluster}, spec: spec, identity: of, key: client.ObjectKey{Namespace: "n"}}
		if got, err := c.list(t.Context()); err != nil || (len(got) == 1) != (name == "") {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
}

// TestUntrustedServer_HeadersAreLimited: headers take memory, too, and warnings in them are not logged.
func TestUntrustedServer_HeadersAreLimited(t *testing.T) {
	cluster := hostile(t, func(out http.ResponseWriter, _ *http.Request) {
		for i := range 10_000 {
			out.Header().Add("Warning", fmt.Sprintf(`299 - "%d"`, i))
		}
		out.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(out, `{"apiVersion":"v1","kind":"Secret"}`)
	})
	if err := requests["built-in object"](t.Context(), cluster); err == nil {
		t.Error("a response with 10,000 headers is accepted")
	}
}

// sendingWatch is a watch whose events a test sends.
type sendingWatch struct {
	events  chan watch.Event
	stopped chan struct{}
}

func (s sendingWatch) ResultChan() <-chan watch.Event { return s.events }
func (s sendingWatch) Stop()                          { close(s.stopped) }

// TestWatch_BacksOff: a server that closes each watch, or sends events without end, gets few requests and is read at intervals.
func TestWatch_BacksOff(t *testing.T) {
	for name, events := range map[string]int{"closed watches": 0, "endless watches": 1 << 20} {
		synctest.Test(t, func(t *testing.T) {
			vm := &vmv1alpha1.VirtualMachine{}
			watches, read := 0, atomic.Int64{}
			cluster := interceptor.NewClient(nil, interceptor.Funcs{
				Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
					return nil
				},
				Watch: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
					watches++
					changes := sendingWatch{make(chan watch.Event), make(chan struct{})}
					go func() {
						defer close(changes.events)
						for range events {
							select {
							case changes.events <- watch.Event{Type: watch.Modified, Object: vm}:
								read.Add(1)
							case <-changes.stopped:
								return
							}
						}
					}()
					return changes, nil
				},
			})
			ctx, cancel := context.WithTimeout(t.Context(), DefaultTimeout)
			defer cancel()
			c := call{cluster: &infrastructure{WithWatch: cluster}}
			_, err := c.follow(ctx, vm, func(*vmv1alpha1.VirtualMachine) (bool, error) { return false, nil })
			if !errors.Is(err, context.DeadlineExceeded) || watches > 12 || read.Load() > 12*(maxEvents+1) {
				t.Errorf("%s: %d watches, %d events, error: %v", name, watches, read.Load(), err)
			}
		})
	}
}

// TestClient_DoesNotFollowRedirects: an API server that the author of a class chose cannot make the driver send requests to another
// server.
func TestClient_DoesNotFollowRedirects(t *testing.T) {
	asked := atomic.Bool{}
	internal := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		asked.Store(true)
		http.Error(out, "internal secret", http.StatusTeapot)
	}))
	t.Cleanup(internal.Close)
	cluster := hostile(t, func(out http.ResponseWriter, request *http.Request) {
		http.Redirect(out, request, internal.URL, http.StatusFound)
	})
	err := cluster.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: "vm"}, &vmv1alpha1.VirtualMachine{})
	if !errors.Is(err, errRedirected) || asked.Load() || strings.Contains(err.Error(), "secret") {
		t.Errorf("other server got a request: %t, error: %v", asked.Load(), err)
	}
}
