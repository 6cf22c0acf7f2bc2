package crash

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/test/support/serverfault"
)

// simVM is a simulated VM.
type simVM = sim.VM

// fault is a deliberate bug of a build. None of them matters without a crash.
type fault string

const (
	// sound is a build without a bug.
	sound fault = ""
	// doubles has a driver that creates another VM on every call.
	doubles fault = "doubles"
	// remembers has a driver that knows only the VMs that its own process has created.
	remembers fault = "remembers"
	// keepsTokens never revokes a token that another process has issued.
	keepsTokens fault = "keeps tokens"
	// repeatsRequest has a driver whose errors repeat the request.
	repeatsRequest fault = "repeats request"
	// evictsNone deletes the Pods of a node that its own process has not cordoned, instead of evicting them.
	evictsNone fault = "evicts none"
)

// waitTimeoutWithBroken is shorter than waitTimeout, because a broken build is expected not to reach the desired
// state after a crash.
const waitTimeoutWithBroken = 20 * time.Second

// provide is the provider's side of a driver.
func (s scenario) provide(d *sim.Driver, broken fault) simulated {
	var result simulated = d
	if s.firstNeverJoins {
		result = &hesitant{simulated: result}
	}
	if s.clusterAPI {
		result = choosy{result}
	}
	if broken == doubles {
		result = doubling{result, d.Cloud()}
	}
	return result
}

// hesitant keeps the node of the first machine from joining.
type hesitant struct {
	simulated
	mu    sync.Mutex
	first string
}

// CreateMachine implements driver.Driver.
func (h *hesitant) CreateMachine(ctx context.Context, q *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	h.mu.Lock()
	if h.first == "" {
		h.first = q.Machine.Name
	}
	never := h.first == q.Machine.Name
	h.mu.Unlock()
	if never {
		class := q.MachineClass.DeepCopy()
		class.ProviderSpec.Raw = []byte(`{"join":"never"}`)
		q = &driver.CreateMachineRequest{Machine: q.Machine, MachineClass: class, Secret: q.Secret}
	}
	return h.simulated.CreateMachine(ctx, q)
}

// doubling implements doubles.
type doubling struct {
	simulated
	cloud *sim.Cloud
}

// CreateMachine implements driver.Driver.
func (d doubling) CreateMachine(_ context.Context, q *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	vm, err := d.cloud.Add(simVM{
		Namespace: q.Machine.Namespace, Machine: q.Machine.Name, Node: &sim.NodePlan{},
		Pool: q.MachineClass.Namespace + "/" + q.MachineClass.Name,
	})
	if err != nil {
		return nil, err
	}
	return &driver.CreateMachineResponse{ProviderID: vm.ProviderID, NodeName: vm.NodeName}, nil
}

// GetMachineStatus implements driver.Driver.
func (d doubling) GetMachineStatus(ctx context.Context, q *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	if q.Machine.Spec.ProviderID == "" {
		return nil, status.Error(codes.NotFound, "VMs are found by their IDs only")
	}
	return d.simulated.GetMachineStatus(ctx, q)
}

// driver is the manager's side of a driver.
func (f fault) driver(r remote) simulated {
	switch f {
	case remembers:
		return &remembering{simulated: r, made: map[string]bool{}}
	case repeatsRequest:
		return requestRepeater{r}
	default:
		return r
	}
}

// remembering implements remembers.
type remembering struct {
	simulated
	mu   sync.Mutex
	made map[string]bool
}

// CreateMachine implements driver.Driver.
func (m *remembering) CreateMachine(ctx context.Context, q *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	m.mu.Lock()
	m.made[q.Machine.Name] = true
	m.mu.Unlock()
	return m.simulated.CreateMachine(ctx, q)
}

// DeleteMachine implements driver.Driver.
func (m *remembering) DeleteMachine(ctx context.Context, q *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	m.mu.Lock()
	known := m.made[q.Machine.Name]
	m.mu.Unlock()
	if !known {
		return nil, status.Error(codes.Unavailable, "never heard of it")
	}
	return m.simulated.DeleteMachine(ctx, q)
}

// requestRepeater implements repeatsRequest.
type requestRepeater struct{ simulated }

// CreateMachine implements driver.Driver.
func (t requestRepeater) CreateMachine(ctx context.Context, q *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	response, err := t.simulated.CreateMachine(ctx, q)
	if err != nil {
		return nil, status.WrapError(status.Code(err), fmt.Sprintf("%v (request: %s)", err, q.Secret.Data["userData"]), err)
	}
	return response, nil
}

// spoil breaks the connection to the API server.
func (f fault) spoil(config *rest.Config) {
	if look, found := firstLooks[f]; found {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { look.next = next; return look })
	}
	switch f {
	case sightless:
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return answering{next} })
	case hasty:
		asked, both := &atomic.Int32{}, make(chan struct{})
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return meeting{next, asked, both} })
	case keepsTokens:
		issued := &sync.Map{}
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &keeping{next: next, issued: issued} })
	case evictsNone:
		cordoned := &atomic.Bool{}
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &deleting{next: next, cordoned: cordoned} })
	}
}

// deleting implements evictsNone.
type deleting struct {
	next     http.RoundTripper
	cordoned *atomic.Bool
}

// RoundTrip implements http.RoundTripper.
func (d *deleting) RoundTrip(r *http.Request) (*http.Response, error) {
	pod, evicts := strings.CutSuffix(r.URL.Path, "/eviction")
	switch {
	case strings.Contains(r.URL.Path, "/nodes/") && r.Method == http.MethodPatch && strings.Contains(bodyOf(r), "unschedulable"):
		d.cordoned.Store(true)
	case evicts && !d.cordoned.Load():
		r = r.Clone(r.Context())
		r.Method, r.URL.Path, r.Body, r.ContentLength = http.MethodDelete, pod, http.NoBody, 0
	}
	return d.next.RoundTrip(r)
}

// bodyOf reads a request's body, and restores it.
func bodyOf(r *http.Request) string {
	if r.GetBody == nil {
		return ""
	}
	body, err := r.GetBody()
	if err != nil {
		return "" // then it is treated as another request
	}
	text, _ := io.ReadAll(body)
	return string(text)
}

// keeping implements keepsTokens.
type keeping struct {
	next   http.RoundTripper
	issued *sync.Map
}

// RoundTrip implements http.RoundTripper.
func (k *keeping) RoundTrip(r *http.Request) (*http.Response, error) {
	_, token, found := strings.Cut(r.URL.Path, "/kube-system/secrets/")
	if found && r.Method == http.MethodDelete {
		if _, own := k.issued.Load(token); !own {
			return respondWith(r, metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusOK})
		}
	}
	response, err := k.next.RoundTrip(r)
	if err == nil && r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/kube-system/secrets") {
		k.note(r)
	}
	return response, err
}

// respondWith responds to a request instead of the API server.
func respondWith(r *http.Request, status metav1.Status) (*http.Response, error) {
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	text, err := json.Marshal(status)
	if err != nil {
		return nil, err
	}
	code := int(status.Code)
	return &http.Response{
		StatusCode: code, Status: http.StatusText(code), Request: r, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}},
		Body:   io.NopCloser(bytes.NewReader(text)),
	}, nil
}

// note records the token that a request has created.
func (k *keeping) note(r *http.Request) {
	_, name := serverfault.ObjectOf(r.URL.Path, []byte(bodyOf(r)))
	k.issued.Store(name, true)
}
