package conformance_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/conformance"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/driver/status"
)

// full has all required and optional methods of a driver.
type full interface {
	driver.Driver
	driver.Initializer
	driver.VolumeIdentifier
	driver.FailureDomains
	driver.Locator
	driver.Updater
	driver.APIGroupSeparator
	driver.ClassMigrator
}

// strict is the simulated driver with a check of credentials and with every behavior that rules cover.
type strict struct{ *sim.Driver }

const token = "s3cr3t-t0ken-value"

func (s strict) admit(ctx context.Context, secret *corev1.Secret) error {
	switch {
	case ctx.Err() == nil && string(secret.Data["token"]) != token:
		return status.Error(codes.Unauthenticated, "the token is invalid")
	default:
		return nil
	}
}

func (s strict) CreateMachine(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	if err := s.admit(ctx, req.Secret); err != nil {
		return nil, err
	}
	if string(req.MachineClass.ProviderSpec.Raw) == tooLarge {
		return nil, status.Error(codes.OutOfRange, "the size is out of range")
	}
	return s.Driver.CreateMachine(ctx, req)
}

func (s strict) GetMachineStatus(ctx context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	if err := s.admit(ctx, req.Secret); err != nil {
		return nil, err
	}
	return s.Driver.GetMachineStatus(ctx, req)
}

func (s strict) ListMachines(ctx context.Context, req *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	if err := s.admit(ctx, req.Secret); err != nil {
		return nil, err
	}
	return s.Driver.ListMachines(ctx, req)
}

func (s strict) GenerateMachineClassForMigration(context.Context, *driver.GenerateMachineClassForMigrationRequest) (*driver.GenerateMachineClassForMigrationResponse, error) {
	return nil, status.Error(codes.Unimplemented, "there are no older kinds of classes")
}

const (
	spec         = `{"pool":"p","latency":"0s","tags":{"kubernetes.io/cluster/one":"1","kubernetes.io/role/node":"1"}}`
	specChanged  = `{"pool":"q","tags":{"kubernetes.io/cluster/one":"1","kubernetes.io/role/node":"1"}}`
	specUpdated  = `{"pool":"p","tags":{"kubernetes.io/cluster/one":"1","kubernetes.io/role/node":"1","team":"blue"}}`
	specDeletion = `{"pool":"p","deleteDelay":"2s","tags":{"kubernetes.io/cluster/one":"1","kubernetes.io/role/node":"1"}}`
	specFull     = `{"pool":"full","capacity":1}`
	tooLarge     = `{"pool":"too-large"}`
)

func classOf(raw string) *v1alpha1.MachineClass {
	return &v1alpha1.MachineClass{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "class"}, ProviderSpec: runtime.RawExtension{Raw: []byte(raw)},
	}
}

func secretOf(data ...string) *corev1.Secret {
	secret := &corev1.Secret{Data: map[string][]byte{"userData": []byte("#!/bin/sh\nkubeadm join --token abcdef.0123456789abcdef\n")}}
	for i := 0; i < len(data); i += 2 {
		secret.Data[data[i]] = []byte(data[i+1])
	}
	return secret
}

// world is a provider with a simulated cloud.
type world struct {
	t     testing.TB
	cloud *sim.Cloud
	full
	// restart returns the driver after a restart. If nil, the driver stays the same.
	restart func() (driver.Driver, error)
	reused  aliases
	// over is closed when the test completes.
	over chan struct{}
}

func newWorld(t testing.TB, initialize bool) *world {
	t.Helper()
	cloud := sim.NewCloud(sim.CloudOptions{})
	if err := cloud.SetZones("zone-a", "zone-b"); err != nil {
		t.Fatal(err)
	}
	if _, err := cloud.Add(sim.VM{Namespace: "ns", Machine: "other", Pool: "full"}); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	return &world{t: t, over: over, cloud: cloud, full: strict{sim.New(sim.Config{Cloud: cloud, RequireInitialize: initialize})}}
}

// provider returns a provider to which all rules apply, except those about initialization.
func (w *world) provider(d driver.Driver) conformance.Provider {
	return conformance.Provider{
		Driver: d, Class: classOf(spec), Secret: secretOf("token", token),
		Variants: conformance.Variants{
			Changed: classOf(specChanged), Updated: classOf(specUpdated), SlowDeletion: classOf(specDeletion),
			Classes: map[conformance.Refusal]*v1alpha1.MachineClass{
				conformance.Invalid: classOf(`{"jitter":7}`), conformance.OutOfRange: classOf(tooLarge), conformance.Full: classOf(specFull),
			},
			BadSecret: secretOf("token", "not-the-token"), OtherAccount: secretOf("token", token, "account", "other"),
			Volumes: map[string]*corev1.PersistentVolumeSpec{"vol-1": csiVolume("vol-1"), "vol-2": csiVolume("vol-2")},
		},
		Hooks: conformance.Hooks{Instances: w.instances, Duplicate: w.duplicate, Restart: w.restarted(d)},
	}
}

func (w *world) restarted(d driver.Driver) func() (driver.Driver, error) {
	if w.restart != nil {
		return w.restart
	}
	return func() (driver.Driver, error) { return d, nil }
}

func csiVolume(handle string) *corev1.PersistentVolumeSpec {
	return &corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
		CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: handle},
	}}
}

func (w *world) instances(context.Context) ([]string, error) {
	vms, err := w.cloud.VMs()
	var ids []string
	for _, vm := range vms {
		ids = append(ids, vm.ProviderID)
	}
	return ids, err
}

func (w *world) duplicate(_ context.Context, namespace, machine string, _ *v1alpha1.MachineClass) error {
	return w.add(namespace, machine)
}

// add creates a VM of the class without the driver.
func (w *world) add(namespace, machine string) error {
	_, err := w.cloud.Add(sim.VM{Namespace: namespace, Machine: machine, Pool: "p", Tags: map[string]string{
		"kubernetes.io/cluster/one": "1", "kubernetes.io/role/node": "1",
	}})
	if err != nil {
		return fmt.Errorf("adding a VM: %w", err)
	}
	return nil
}

// vanish removes the VMs of a machine without the driver.
func (w *world) vanish(machine string) {
	if _, err := w.cloud.Vanish(machine); err != nil {
		w.t.Error(err)
	}
}

// vm returns the VM with the given ID and whether it exists.
func (w *world) vm(id string) (sim.VM, bool) {
	vms, err := w.cloud.VMs()
	if err != nil {
		w.t.Error(err)
	}
	at := slices.IndexFunc(vms, func(v sim.VM) bool { return v.ProviderID == id })
	if at < 0 {
		return sim.VM{}, false
	}
	return vms[at], true
}

// has reports whether a machine has a VM.
func (w *world) has(machine string) bool {
	vms, err := w.cloud.VMs()
	if err != nil {
		w.t.Error(err)
	}
	return slices.ContainsFunc(vms, func(v sim.VM) bool { return v.Machine == machine })
}

// aliases maps IDs without the number that distinguishes the VMs of a machine to full IDs.
type aliases struct {
	mu sync.Mutex
	of map[string]string
}

func (a *aliases) put(id string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	short := id[:strings.LastIndex(id, "/")]
	if a.of == nil {
		a.of = map[string]string{}
	}
	a.of[short] = id
	return short
}

func (a *aliases) get(short string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if id := a.of[short]; id != "" {
		return id
	}
	return short
}
