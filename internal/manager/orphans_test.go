package manager

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/lifecycle/orphans"
	"github.com/millwright-dev/millwright/test/support/env"
)

// TestOrphans_OutOfRangeTriggersPass checks that, when a driver reports several VMs of a machine, the orphan
// collector lists all VMs immediately rather than after its period.
func TestOrphans_OutOfRangeTriggersPass(t *testing.T) {
	e := env.New(t)
	cloud := sim.NewCloud(sim.CloudOptions{})
	cloud.Fail(sim.Fault{Method: sim.GetMachineStatus, Codes: []codes.Code{codes.OutOfRange}})
	cfg := Config{
		Control: e.UserWith(t, "config/rbac/control-role.yaml"),
		Drivers: registry.Only("sim", sim.New(sim.Config{Cloud: cloud})),
		Log:     testr.New(t),
		Settings: Settings{
			Namespace:       e.Namespace,
			ConcurrentSyncs: 5,
			MachineSettings: MachineSettings{CreationTimeout: time.Minute},
		},
	}
	cfg.Orphans.Mode, cfg.Orphans.Period = orphans.Report, time.Hour
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, cfg) }()
	for _, object := range oneMachine(e.Namespace) {
		if err := e.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	gomega.NewWithT(t).Eventually(func() bool {
		entries, err := cloud.Journal()
		return err == nil && slices.ContainsFunc(entries, func(entry sim.Entry) bool { return entry.Method == sim.ListMachines })
	}).WithTimeout(env.WaitTimeout).Should(gomega.BeTrue())
	stop()
	if err := <-ended; err != nil {
		t.Errorf("the manager returned %v", err)
	}
}

// oneMachine returns a machine with everything that it needs.
func oneMachine(namespace string) []client.Object {
	named := metav1.ObjectMeta{Namespace: namespace, Name: "one"}
	machine := &v1alpha1.Machine{ObjectMeta: named}
	machine.Spec.Class = v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "one"}
	return []client.Object{
		&corev1.Secret{ObjectMeta: named, Data: map[string][]byte{"userData": []byte("u")}},
		&v1alpha1.MachineClass{
			ObjectMeta: named, Provider: "sim", SecretRef: &corev1.SecretReference{Namespace: namespace, Name: "one"},
			ProviderSpec: runtime.RawExtension{Raw: []byte(`{"tags":{"kubernetes.io/cluster/c":"1","kubernetes.io/role/node":"1"}}`)},
		},
		machine,
	}
}
