package denied

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/controllers/capi"
	"github.com/millwright-dev/millwright/internal/controllers/capi/balancer"
	"github.com/millwright-dev/millwright/internal/controllers/capi/cluster"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/finalizers"
	"github.com/millwright-dev/millwright/internal/controllers/capi/template"
	"github.com/millwright-dev/millwright/internal/controllers/legacyclass"
	"github.com/millwright-dev/millwright/internal/controllers/machine"
	"github.com/millwright-dev/millwright/internal/controllers/machine/unmanaged"
	"github.com/millwright-dev/millwright/internal/controllers/machineclass"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment"
	"github.com/millwright-dev/millwright/internal/controllers/machineset"
	"github.com/millwright-dev/millwright/internal/controllers/nodecertificate"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/loadbalancer"
	"github.com/millwright-dev/millwright/internal/reconcile/target"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	"github.com/millwright-dev/millwright/test/support/fakeclient"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/memnet"
)

// world is a cluster in which a webhook denies all writes while denial is set.
type world struct {
	*testing.T
	client.Client
	events *record.FakeRecorder
	clock  *testingclock.FakeClock
	denial error
	denied int
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	core.AddToScheme(scheme, core.V1Beta2)
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, certificatesv1.AddToScheme, v1alpha1.AddToScheme, legacy.AddToScheme, infrav1.AddToScheme, vmv1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	w := &world{T: t, events: record.NewFakeRecorder(100), clock: testingclock.NewFakeClock(fixture.Noon)}
	stored := fakeclient.NewBuilder(scheme).WithObjects(objects...).WithStatusSubresource(
		&v1alpha1.Machine{}, &v1alpha1.MachineSet{}, &v1alpha1.MachineDeployment{}, &vmv1alpha1.VirtualMachine{},
		&infrav1.MillwrightMachine{}, &infrav1.MillwrightMachineTemplate{}, &infrav1.MillwrightCluster{},
	).Build()
	w.Client = interceptor.NewClient(stored, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			asked := (&client.ListOptions{}).ApplyOptions(options)
			asked.FieldSelector = nil // there is no object that another one's index would not find
			return c.List(ctx, list, asked)
		},
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			return w.write(func() error { return c.Create(ctx, object, options...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			return w.write(func() error { return c.Patch(ctx, object, patch, options...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.DeleteOption) error {
			return w.write(func() error { return c.Delete(ctx, object, options...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			return w.write(func() error { return c.SubResource(sub).Patch(ctx, object, patch, options...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, object client.Object, options ...client.SubResourceUpdateOption) error {
			return w.write(func() error { return c.SubResource(sub).Update(ctx, object, options...) })
		},
	})
	return w
}

func (w *world) write(do func() error) error {
	if w.denial != nil {
		w.denied++
		return w.denial
	}
	return do()
}

// target is the cluster that nodes join.
func (w *world) target() target.Interface { return joined{client: w.Client} }

type joined struct {
	target.Interface
	client client.Client
}

func (j joined) Client() client.Client { return j.client }
func (j joined) Ready() bool           { return true }
func (j joined) ReadySince() time.Time { return fixture.Noon }

func (w *world) engine() *instance.Engine {
	return instance.New(fake.New(fake.Config{}), instance.Options{
		Run: func(func(context.Context)) bool { return true }, Wake: func(instance.Key) {}, Clock: w.clock,
	})
}

// controllers are all controllers, each with an object whose first reconcile writes.
var controllers = map[string]struct {
	object client.Object
	others []client.Object
	// silent means that no event is expected, because the status reports the error.
	silent bool
	begin  func(*world) reconcile.Reconciler
}{
	"machine": {object: fixture.Machine(), others: []client.Object{fixture.MachineClass(), fixture.Secret()}, begin: func(w *world) reconcile.Reconciler {
		return machine.New(machine.Options{Client: w, Engine: w.engine(), Events: w.events, Clock: w.clock})
	}},
	"unmanaged node": {object: fixture.Node(), begin: func(w *world) reconcile.Reconciler {
		return unmanaged.New(unmanaged.Options{Machines: w, Target: w.target(), Events: w.events, Clock: w.clock})
	}},
	"machineset": {object: fixture.MachineSet(), silent: true, begin: func(w *world) reconcile.Reconciler {
		return machineset.New(machineset.Options{Client: w, Live: w, Events: w.events, Clock: w.clock})
	}},
	"machinedeployment": {object: fixture.MachineDeployment(), silent: true, begin: func(w *world) reconcile.Reconciler {
		return machinedeployment.New(machinedeployment.Options{Client: w, Live: w, Events: w.events, Clock: w.clock})
	}},
	"machineclass": {object: fixture.MachineClass(), others: []client.Object{fixture.Machine()}, begin: func(w *world) reconcile.Reconciler {
		return machineclass.New(w, w.events)
	}},
	"machineclass's secrets": {object: fixture.Secret(), others: []client.Object{fixture.MachineClass()}, begin: func(w *world) reconcile.Reconciler {
		return machineclass.NewForSecrets(w, w.events)
	}},
	"legacyclass": {
		object: &legacy.AWSMachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: fixture.Namespace, Name: "old"}},
		others: []client.Object{fixture.Machine(func(m *v1alpha1.Machine) {
			m.Spec.Class = v1alpha1.ClassSpec{Kind: legacy.AWS, Name: "old"}
		})},
		begin: func(w *world) reconcile.Reconciler {
			c := legacyclass.New(legacyclass.Options{
				Client: w, Cache: w, Drivers: registry.Only("sim", sim.New(sim.Config{})), Kinds: legacy.Kinds(), Events: w.events, Clock: w.clock,
			})
			return reconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
				return c.Reconcile(ctx, legacy.AWS, req.NamespacedName)
			})
		},
	},
	"nodecertificate": {
		object: &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "join"}},
		others: []client.Object{fixture.Machine(func(m *v1alpha1.Machine) { m.Labels[v1alpha1.NodeLabelKey] = "machine" })},
		begin: func(w *world) reconcile.Reconciler {
			tokens := &bootstrap.Tokens{Target: w, Installation: fixture.Namespace, Clock: w.clock}
			denial := w.denial
			w.denial = nil
			token, err := tokens.Issue(w.Context(), client.ObjectKeyFromObject(fixture.Machine()), time.Hour)
			if err != nil {
				w.Fatal(err)
			}
			request := fixture.NodeRequest(w, "machine")
			id, _, _ := strings.Cut(token, ".")
			request.GenerateName, request.Name = "", "join"
			request.Spec.Username = bootstrap.UserPrefix + id
			if err := w.Create(w.Context(), request); err != nil {
				w.Fatal(err)
			}
			w.denial = denial
			return nodecertificate.New(nodecertificate.Options{Machines: w, Target: w.target(), Tokens: tokens, Events: w.events, Clock: w.clock})
		},
	},
	"virtualmachine": {object: fixture.VirtualMachine(), begin: func(w *world) reconcile.Reconciler {
		authority, err := identity.NewAuthority(fixture.Noon)
		if err != nil {
			w.Fatal(err)
		}
		return virtualmachine.New(virtualmachine.Options{Client: w, APIReader: w, Events: w.events, Clock: w.clock, Authority: authority, Image: "hypervisor"})
	}},
	"capi": {object: infraMachine(), others: []client.Object{coreMachine(), coreCluster()}, begin: func(w *world) reconcile.Reconciler {
		return capi.New(capi.Options{Client: w, Live: w, Engine: w.engine(), Events: w.events, Clock: w.clock, Drivers: registry.Only("fake", fake.New(fake.Config{}))})
	}},
	"capi's secrets": {
		object: fixture.Secret(),
		others: []client.Object{fixture.MillwrightMachine(func(m *infrav1.MillwrightMachine) {
			m.Finalizers = []string{infrav1.Finalizer}
			m.Spec.ProviderID = "fake:///1"
			m.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: fixture.Class}
		})},
		begin: func(w *world) reconcile.Reconciler {
			return finalizers.NewForSecrets(w, w, func(*infrav1.MillwrightMachine) bool { return true }, w.events)
		},
	},
	"capi's classes": {
		object: fixture.MachineClass(), others: []client.Object{fixture.MillwrightMachine()},
		begin: func(w *world) reconcile.Reconciler { return finalizers.NewForClasses(w, w.events) },
	},
	"cluster": {object: infraCluster(), others: []client.Object{coreCluster()}, begin: func(w *world) reconcile.Reconciler {
		return cluster.New(cluster.Options{Client: w, Live: w, Events: w.events, Clock: w.clock})
	}},
	"template": {
		object: &infrav1.MillwrightMachineTemplate{
			ObjectMeta: metav1.ObjectMeta{Namespace: fixture.Namespace, Name: "t"},
			Spec: infrav1.MillwrightMachineTemplateSpec{Template: infrav1.MillwrightMachineTemplateResource{Spec: infrav1.MillwrightMachineSpec{
				NodeTemplate: &infrav1.NodeTemplate{Capacity: corev1.ResourceList{corev1.ResourceCPU: {}}},
			}}},
		},
		begin: func(w *world) reconcile.Reconciler {
			return template.New(template.Options{Client: w, Events: w.events})
		},
	},
	"balancer": {object: infraCluster(), others: []client.Object{coreCluster()}, begin: func(w *world) reconcile.Reconciler {
		c := balancer.New(balancer.Options{
			Client: w, Live: w, Events: w.events, Clock: w.clock, Name: infrav1.DefaultLoadBalancer, Host: "lb.example.com", FirstPort: 1, LastPort: 1,
			Listen:   func(int32) (net.Listener, error) { return memnet.New(), nil },
			Balancer: loadbalancer.Options{Log: slog.New(slog.DiscardHandler)},
		})
		w.Cleanup(c.Close)
		return c
	}},
}

func coreCluster() *core.Cluster {
	made := &core.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: fixture.Namespace, Name: "c"}}
	made.Status.Initialization.InfrastructureProvisioned = true
	return made
}

func coreMachine() *core.Machine {
	made := &core.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: fixture.Namespace, Name: "m", UID: "u"}}
	made.Spec.ClusterName = "c"
	return made
}

func infraMachine() *infrav1.MillwrightMachine {
	return fixture.MillwrightMachine(func(m *infrav1.MillwrightMachine) {
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: core.V1Beta2.String(), Kind: core.MachineKind, Name: "m", UID: "u"}}
	})
}

func infraCluster() *infrav1.MillwrightCluster {
	made := &infrav1.MillwrightCluster{ObjectMeta: metav1.ObjectMeta{Namespace: fixture.Namespace, Name: "infra"}}
	made.OwnerReferences = []metav1.OwnerReference{{APIVersion: core.V1Beta2.String(), Kind: core.ClusterKind, Name: "c", UID: "u"}}
	made.Spec.ControlPlaneLoadBalancer = &infrav1.ControlPlaneLoadBalancer{}
	return made
}

// TestController_WebhookDeniesWrites checks that a webhook which denies writes is not taken for another client's write, or
// for a deletion, whatever status code it responds with: each pass fails, so that the object is retried with back-off.
func TestController_WebhookDeniesWrites(t *testing.T) {
	for name, test := range controllers {
		for _, code := range []int32{http.StatusConflict, http.StatusNotFound, http.StatusForbidden} {
			t.Run(name+"/"+http.StatusText(int(code)), func(t *testing.T) {
				objects := test.others
				if _, ok := test.object.(*certificatesv1.CertificateSigningRequest); !ok {
					objects = append([]client.Object{test.object.DeepCopyObject().(client.Object)}, objects...)
				}
				w := newWorld(t, objects...)
				// As kube-apiserver writes it, see k8s.io/apiserver/pkg/admission/plugin/webhook/errors.
				w.denial = &apierrors.StatusError{ErrStatus: metav1.Status{
					Status: metav1.StatusFailure, Code: code, Message: `admission webhook "freeze.example.com" denied the request: the cluster is frozen`,
				}}
				r := test.begin(w)
				for range 3 {
					before := w.denied
					result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(test.object)})
					if w.denied == before {
						t.Fatal("the pass writes nothing")
					}
					if err == nil {
						t.Errorf("the pass returns %+v and no error", result)
					}
				}
				if test.silent {
					return
				}
				events := 0
				for len(w.events.Events) > 0 {
					if strings.Contains(<-w.events.Events, "the cluster is frozen") {
						events++
					}
				}
				if events != 1 {
					t.Errorf("%d events mention the webhook, want 1", events)
				}
			})
		}
	}
}
