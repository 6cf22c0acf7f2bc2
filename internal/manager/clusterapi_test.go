package manager

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/test/support/coretest"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestLeases checks which leases a manager holds, and in which namespace.
func TestLeases(t *testing.T) {
	for name, tc := range map[string]struct {
		config Config
		leases int
	}{
		"MCM by default": {Config{}, 2},
		"Cluster API":    {Config{Settings: Settings{APIs: []API{APICAPI}}}, 1},
		"both":           {Config{Settings: Settings{APIs: []API{APIMCM, APICAPI}}}, 3},
	} {
		if got := tc.config.leases(); len(got) != tc.leases {
			t.Errorf("%s: leases %v", name, got)
		}
	}
	named := Config{Settings: Settings{APIs: []API{APIMCM, APICAPI}, Election: Election{ClusterAPILease: "team"}}}
	want := []string{v1alpha1.LeaseMachineController, v1alpha1.LeaseMachineControllerManager, "team"}
	if diff := cmp.Diff(want, named.leases()); diff != "" {
		t.Errorf("leases with a name (-want +got):\n%s", diff)
	}
	if got := (Config{Settings: Settings{Namespace: "a"}}).leaseNamespace(); got != "a" {
		t.Errorf("leases are in %q", got)
	}
	if got := (Config{Settings: Settings{Namespace: "a", Election: Election{Namespace: "b"}}}).leaseNamespace(); got != "b" {
		t.Errorf("leases are in %q", got)
	}
}

// TestManager_RequiresCRDsOfClusterAPI checks that the error names what is missing and how to install it, and that the manager
// fails immediately.
func TestManager_RequiresCRDsOfClusterAPI(t *testing.T) {
	tier.All(t)
	e := env.New(t, env.WithOwn()) // the environment shared by this package has the CRDs
	err := Run(t.Context(), Config{
		Control: e.Admin,
		Drivers: registry.Only("sim", sim.New(sim.Config{})),
		Settings: Settings{
			Namespace:       e.Namespace,
			APIs:            []API{APICAPI},
			ConcurrentSyncs: 1,
		},
	})
	for _, text := range []string{"does not serve", "cluster.x-k8s.io", "clusterctl init"} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v does not contain %q", err, text)
		}
	}
}

// TestManager_BothAPIs runs both APIs in one manager with one driver, one name and one class. They must get two
// independent VMs. The manager has only the roles that are shipped.
func TestManager_BothAPIs(t *testing.T) {
	e := env.New(t)
	coretest.Install(t, e.Admin)
	scheme := Scheme()
	core.AddToScheme(scheme, core.V1Beta2)
	admin, err := client.New(e.Admin, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	cloud := sim.NewCloud(sim.CloudOptions{})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{
			Control: e.UserWith(t, "config/rbac/control-role.yaml", "config/rbac/capi-role.yaml"),
			Drivers: registry.Only("sim", sim.New(sim.Config{Cloud: cloud})),
			Log:     testr.New(t),
			Settings: Settings{
				Namespace:       e.Namespace,
				APIs:            []API{APIMCM, APICAPI},
				ConcurrentSyncs: 5,
				Election:        Election{Enabled: true, LeaseDuration: time.Hour, RenewDeadline: 50 * time.Minute, RetryPeriod: 100 * time.Millisecond},
				MachineSettings: MachineSettings{CreationTimeout: time.Minute},
			},
		})
	}()
	for _, object := range ofBothAPIs(e.Namespace) {
		if err := admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	g := gomega.NewWithT(t)
	infra := &infrav1.MillwrightMachine{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "capi"}}
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "mcm"}}
	read := func(object client.Object) error {
		return admin.Get(t.Context(), client.ObjectKeyFromObject(object), object)
	}
	g.Eventually(func() bool { return read(infra) == nil && infra.Status.Ready }).WithTimeout(env.WaitTimeout).Should(gomega.BeTrue())
	g.Eventually(func() bool { return read(machine) == nil && machine.Spec.ProviderID != "" }).WithTimeout(env.WaitTimeout).Should(gomega.BeTrue())
	template := &infrav1.MillwrightMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "template"}}
	g.Eventually(func() bool { return read(template) == nil && template.Status.NodeInfo != nil }).WithTimeout(env.WaitTimeout).Should(gomega.BeTrue())
	cluster := &infrav1.MillwrightCluster{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "cluster"}}
	g.Eventually(func() bool { return read(cluster) == nil && cluster.Status.Ready }).WithTimeout(env.WaitTimeout).Should(gomega.BeTrue())
	if infra.Spec.ProviderID == machine.Spec.ProviderID {
		t.Errorf("both have VM %s", infra.Spec.ProviderID)
	}
	if err := admin.Delete(t.Context(), infra); err != nil {
		t.Fatal(err)
	}
	g.Eventually(func() bool { return apierrors.IsNotFound(read(infra)) }).WithTimeout(env.WaitTimeout).Should(gomega.BeTrue())
	vms, err := cloud.VMs()
	if err != nil || len(vms) != 1 || vms[0].ProviderID != machine.Spec.ProviderID {
		t.Errorf("VMs %v, %v", vms, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("the manager returned %v", err)
	}
}

// ofBothAPIs returns a machine of each API, from one class, with the objects that they need.
func ofBothAPIs(namespace string) []client.Object {
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace, Name: name} }
	class := &v1alpha1.MachineClass{
		ObjectMeta: named("class"), Provider: "sim", SecretRef: &corev1.SecretReference{Name: "secret"},
		ProviderSpec: runtime.RawExtension{Raw: []byte(`{"tags":{"kubernetes.io/cluster/c":"1"}}`)},
	}
	owner := &core.Machine{ObjectMeta: named("capi")}
	owner.Spec.ClusterName = "cluster"
	owner.Spec.Bootstrap.DataSecretName = new("secret")
	of := &core.Cluster{ObjectMeta: named("cluster")}
	of.Spec.InfrastructureRef = core.Reference{APIGroup: infrav1.GroupName, Kind: infrav1.MillwrightClusterKind, Name: "cluster"}
	of.Status.Initialization.InfrastructureProvisioned = true
	infra := &infrav1.MillwrightMachine{ObjectMeta: named("capi")}
	infra.OwnerReferences = []metav1.OwnerReference{{APIVersion: core.V1Beta2.String(), Kind: core.MachineKind, Name: "capi", UID: "u"}}
	infra.Spec = infrav1.MillwrightMachineSpec{Driver: "sim", MachineClassRef: &infrav1.LocalReference{Name: "class"}}
	template := &infrav1.MillwrightMachineTemplate{ObjectMeta: named("template")}
	template.Spec.Template.Spec = *infra.Spec.DeepCopy()
	template.Spec.Template.Spec.NodeTemplate = &infrav1.NodeTemplate{Architecture: "amd64"}
	shared := &infrav1.MillwrightCluster{ObjectMeta: named("cluster")}
	shared.OwnerReferences = []metav1.OwnerReference{{APIVersion: core.V1Beta2.String(), Kind: core.ClusterKind, Name: "cluster", UID: "u"}}
	machine := &v1alpha1.Machine{ObjectMeta: named("mcm")}
	machine.Spec.Class = v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "class"}
	return []client.Object{
		&corev1.Secret{ObjectMeta: named("secret"), Data: map[string][]byte{"userData": []byte("u"), core.BootstrapData: []byte("b")}},
		class, owner, of, infra, template, shared, machine,
	}
}
