package security

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/coretest"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// response is a provider's response about the VM of a Machine.
type response struct {
	id, node, state, domain string
	addresses               []corev1.NodeAddress
}

// lie is a wrong response of a provider about one Machine, on creation and on later requests. The victim is the
// Machine to which the response refers.
type lie func(actual, victim response, err error) (response, error)

func instead(output response) lie {
	return func(response, response, error) (response, error) { return output, nil }
}

func fails(code codes.Code, message string) lie {
	return func(response, response, error) (response, error) { return response{}, status.Error(code, message) }
}

var (
	hugeText   = strings.Repeat("\x1b[2J\u202eä", 100_000)
	binaryText = "\x00\xff\xfe\x1b]0;x\x07\r\n"
	asked      atomic.Int64
)

// providersLies contains all lies, by the name of the test.
var providersLies = map[string]lie{
	"the VM of another": func(actual, victim response, err error) (response, error) { actual.id = victim.id; return actual, err },
	"the node of another": func(actual, victim response, err error) (response, error) {
		actual.node = victim.node
		return actual, err
	},
	"the response for another": func(_, victim response, _ error) (response, error) { return victim, nil },
	"another VM each time":     differing,
	"no VM, and then one":      hesitating,
	"nothing":                  instead(response{}),
	"no node":                  func(actual, _ response, err error) (response, error) { actual.node = ""; return actual, err },
	"a huge ID":                instead(response{id: hugeText, node: "n"}),
	"a binary ID":              instead(response{id: binaryText, node: "n"}),
	"a huge node":              func(actual, _ response, err error) (response, error) { actual.node = hugeText; return actual, err },
	"an invalid node name": func(actual, _ response, err error) (response, error) {
		actual.node = "../" + binaryText
		return actual, err
	},
	"a huge state":   func(actual, _ response, err error) (response, error) { actual.state = hugeText; return actual, err },
	"a binary state": func(actual, _ response, err error) (response, error) { actual.state = binaryText; return actual, err },
	"addresses that are none": func(actual, _ response, err error) (response, error) {
		actual.addresses = badAddresses()
		return actual, err
	},
	"a zone that is none":        func(actual, _ response, err error) (response, error) { actual.domain = hugeText; return actual, err },
	"a huge error":               fails(codes.Internal, hugeText),
	"a binary error":             fails(codes.ResourceExhausted, binaryText),
	"a code that is none":        fails(codes.Code(4711), "x"),
	"that all is well, by error": fails(codes.OK, "x"),
	"never that it is there":     fails(codes.NotFound, hugeText),
	"always that it is there":    fails(codes.AlreadyExists, hugeText),
}

func differing(actual, _ response, err error) (response, error) {
	actual.id = fmt.Sprintf("sim:///x/y/%d", asked.Add(1))
	return actual, err
}

func hesitating(actual, _ response, err error) (response, error) {
	if asked.Add(1)%2 == 0 {
		return response{}, status.Error(codes.NotFound, "there is none")
	}
	return actual, err
}

func badAddresses() []corev1.NodeAddress {
	return []corev1.NodeAddress{{Type: "None", Address: hugeText}, {Type: corev1.NodeInternalIP, Address: binaryText}, {}}
}

// liar is a provider that responds wrongly about some Machines, and in lists.
type liar struct {
	*sim.Driver
	lies map[string]lie

	mu     sync.Mutex
	victim response
	made   map[string]map[string]bool // the VMs of each Machine
}

func (l *liar) respond(machine string, actual response, err error) (response, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lie, lies := l.lies[machine]; lies {
		return lie(actual, l.victim, err)
	}
	return actual, err
}

// CreateMachine implements driver.Driver.
func (l *liar) CreateMachine(ctx context.Context, q *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	actual, err := l.Driver.CreateMachine(ctx, q)
	if actual == nil {
		return actual, err
	}
	l.mu.Lock()
	if l.made[q.Machine.Name] == nil {
		l.made[q.Machine.Name] = map[string]bool{}
	}
	l.made[q.Machine.Name][actual.ProviderID] = true
	l.mu.Unlock()
	output, err := l.respond(q.Machine.Name, response{id: actual.ProviderID, node: actual.NodeName, addresses: actual.Addresses}, err)
	return &driver.CreateMachineResponse{
		ProviderID: output.id, NodeName: output.node, LastKnownState: output.state, Addresses: output.addresses, FailureDomain: output.domain,
	}, err
}

// GetMachineStatus implements driver.Driver.
func (l *liar) GetMachineStatus(ctx context.Context, q *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	actual, err := l.Driver.GetMachineStatus(ctx, q)
	if actual == nil {
		actual = &driver.GetMachineStatusResponse{}
	}
	if status.Code(err) == codes.NotFound && q.Machine.Spec.ProviderID == "" {
		return nil, err // otherwise it would never be created
	}
	output, err := l.respond(q.Machine.Name, response{id: actual.ProviderID, node: actual.NodeName, addresses: actual.Addresses}, err)
	return &driver.GetMachineStatusResponse{ProviderID: output.id, NodeName: output.node, Addresses: output.addresses, FailureDomain: output.domain}, err
}

// ListMachines implements driver.Driver. It reports the victim's VM as an orphan, and additional VMs.
func (l *liar) ListMachines(ctx context.Context, q *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	actual, err := l.Driver.ListMachines(ctx, q)
	l.mu.Lock()
	defer l.mu.Unlock()
	if actual != nil && l.victim.id != "" {
		for id, machine := range map[string]string{l.victim.id: "nobody", hugeText: hugeText, binaryText: "../" + binaryText, "": ""} {
			actual.MachineList[id] = machine
		}
	}
	return actual, err
}

// lying returns a wrapper for a manager's provider with those lies, for Machines whose names contain a number.
func (m *managed) lying() (*liar, map[string]string) {
	l, names := &liar{lies: map[string]lie{}, made: map[string]map[string]bool{}}, map[string]string{}
	for what, lie := range providersLies {
		name := fmt.Sprintf("lied-%d", len(names))
		names[name], l.lies[name] = what, lie
	}
	m.provider = func(d *sim.Driver) driver.Driver { l.Driver = d; return l }
	return l, names
}

// onlyText fails the test if a text that is shown to users contains terminal control sequences, or is longer than
// a page.
func (m *managed) onlyText(what string, shown any) {
	m.t.Helper()
	text, err := json.Marshal(shown)
	m.must(err)
	if len(text) > 100<<10 {
		m.t.Errorf("%s has %d bytes", what, len(text))
	}
	for _, bad := range []string{`\u001b`, `\u0000`, `\u0007`, "\u202e", `\ufffd]0`} {
		if strings.Contains(string(text), bad) {
			at := strings.Index(string(text), bad)
			m.t.Errorf("%s has %s: %.300s", what, bad, text[max(0, at-200):])
		}
	}
}

// noDoubles fails the test if a Machine ever had two VMs.
func (l *liar) noDoubles(t *testing.T, names map[string]string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for machine, vms := range l.made {
		if len(vms) > 1 {
			t.Errorf("%s (%s) had %d VMs: %v", machine, names[machine], len(vms), vms)
		}
	}
}

// TestProvider_WrongResponsesDisturbNoOthers checks that, whatever a provider reports about some Machines, another Machine, its node
// and its VM are not affected, no Machine gets two VMs, users are shown short texts, and a deleted Machine is
// removed, or reports what it waits for.
func TestProvider_WrongResponsesDisturbNoOthers(t *testing.T) {
	tier.All(t)
	t.Parallel()
	m := &managed{Env: env.New(t), t: t, cloud: sim.NewCloud(sim.CloudOptions{})}
	m.admin = m.Client
	l, names := m.lying()
	access := m.UserWith(t, controlRole, targetRole)
	m.create(m.admin, m.class(pool, `{}`)...)
	m.manage(manager.Config{Control: access, Target: access})
	victim := m.machine("victim", pool)
	m.create(m.admin, victim)
	m.running(victim)
	l.mu.Lock()
	l.victim = response{id: victim.Spec.ProviderID, node: victim.Labels[v1alpha1.NodeLabelKey]}
	l.mu.Unlock()
	before := m.seen(victim)
	t.Run("all", func(t *testing.T) {
		for name, what := range names {
			machine := m.machine(name, pool)
			machine.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{}
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				m := m.in(t)
				m.create(m.admin, machine)
				m.eventually("the manager has looked at it", func() bool {
					return m.admin.Get(t.Context(), client.ObjectKeyFromObject(machine), machine) == nil && machine.Status.LastOperation.Description != ""
				})
				m.onlyText(what, machine)
				m.delete(machine)
				defer func() {
					t.Logf("%s: %.300s", machine.Status.LastOperation.State, machine.Status.LastOperation.Description)
				}()
				deadline := time.Now().Add(waiting)
				m.eventually("it is deleted, or reports what it waits for", func() bool {
					err := m.admin.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)
					last := machine.Status.LastOperation
					wantText := last.Type == v1alpha1.MachineOperationDelete && last.State == v1alpha1.MachineStateFailed ||
						strings.Contains(last.Description, "the driver")
					return client.IgnoreNotFound(err) == nil && (err != nil || time.Now().After(deadline) && wantText)
				})
				m.onlyText(what, machine)
			})
		}
	})
	if diff := cmp.Diff(before, m.seen(victim)); diff != "" {
		t.Errorf("another Machine changed (-was +is):\n%s", diff)
	}
	if !m.hasVM("victim") {
		t.Error("another Machine's VM is gone")
	}
	events := &corev1.EventList{}
	m.must(m.admin.List(t.Context(), events, client.InNamespace(m.Namespace)))
	for i := range events.Items {
		m.onlyText("an event", events.Items[i].Message)
	}
	l.noDoubles(t, names)
}

// waiting is the time after which a deleted Machine must report what it waits for.
const waiting = 5 * time.Second

// infraMachine creates a MillwrightMachine of an existing cluster, with the objects that it needs.
func (m *managed) infraMachine(name string) *infrav1.MillwrightMachine {
	m.t.Helper()
	owner := m.coreMachine(name)
	m.create(m.admin, owner)
	infra := m.infra(name, owner)
	m.create(m.admin, infra)
	return infra
}

// TestProvider_WrongResponsesDisturbNoOtherMillwrightMachines checks the same for MillwrightMachines.
func TestProvider_WrongResponsesDisturbNoOtherMillwrightMachines(t *testing.T) {
	tier.All(t)
	t.Parallel()
	m := &managed{Env: env.New(t), t: t, cloud: sim.NewCloud(sim.CloudOptions{})}
	coretest.Install(t, m.Admin)
	scheme := manager.Scheme()
	core.AddToScheme(scheme, core.V1Beta2)
	var err error
	m.admin, err = client.New(m.Admin, client.Options{Scheme: scheme})
	m.must(err)
	l, names := m.lying()
	m.create(m.admin, m.class(pool, `{"tags":{"kubernetes.io/cluster/c":"1"}}`)...)
	m.manage(manager.Config{Control: m.UserWith(t, capiRole), Settings: manager.Settings{APIs: []manager.API{manager.APICAPI}}})
	victim := m.infrastructure()
	l.mu.Lock()
	l.victim = response{id: victim.Spec.ProviderID, node: victim.Name}
	l.mu.Unlock()
	t.Run("all", func(t *testing.T) {
		for name, what := range names {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				m := m.in(t)
				infra := m.infraMachine(name)
				read := func() error { return m.admin.Get(t.Context(), client.ObjectKeyFromObject(infra), infra) }
				m.eventually("the manager has looked at it", func() bool { return read() == nil && len(infra.Status.Conditions) > 0 })
				m.onlyText(what, infra)
				m.delete(infra)
				deadline := time.Now().Add(waiting)
				m.eventually("it is deleted, or reports what it waits for", func() bool {
					err := read()
					return client.IgnoreNotFound(err) == nil && (err != nil || time.Now().After(deadline) && reportsWhy(infra))
				})
				m.onlyText(what, infra)
			})
		}
	})
	after := &infrav1.MillwrightMachine{}
	m.must(m.admin.Get(t.Context(), client.ObjectKeyFromObject(victim), after))
	if diff := cmp.Diff(victim.Spec, after.Spec); diff != "" || !after.DeletionTimestamp.IsZero() || !after.Status.Ready {
		t.Errorf("another machine changed, or is not ready: %+v (-was +is):\n%s", after.Status, diff)
	}
	if !m.hasVM(victim.Name) {
		t.Error("another machine's VM is gone")
	}
	l.noDoubles(t, names)
}

// reportsWhy reports whether a condition of a machine that is being deleted describes the problem.
func reportsWhy(infra *infrav1.MillwrightMachine) bool {
	for _, condition := range infra.Status.Conditions {
		if condition.Status != "True" && condition.Message != "" {
			return true
		}
	}
	return false
}
