package vm_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/drivers/vm"
)

func TestVM_Lifecycle(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	w.hosts()
	_, err := w.status("m", "")
	wantCode(t, err, codes.NotFound)

	made := w.mustCreate("m")
	want := &driver.CreateMachineResponse{
		ProviderID: "millwright:///" + w.Namespace + "/" + w.theVM().Spec.UUID, NodeName: "m",
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.77.0.16"}, {Type: corev1.NodeHostName, Address: "m"}},
	}
	if diff := cmp.Diff(want, made); diff != "" {
		t.Errorf("response to create (-want +got):\n%s", diff)
	}
	if again := w.mustCreate("m"); !cmp.Equal(made, again) {
		t.Errorf("create is not idempotent: %s", cmp.Diff(made, again))
	}
	for _, id := range []string{"", made.ProviderID} {
		found, err := w.status("m", id)
		wantCode(t, err, codes.OK)
		if diff := cmp.Diff(&driver.GetMachineStatusResponse{ProviderID: made.ProviderID, NodeName: "m", Addresses: made.Addresses}, found); diff != "" {
			t.Errorf("status with ID %q (-want +got):\n%s", id, diff)
		}
	}
	if diff := cmp.Diff(map[string]string{made.ProviderID: "m"}, w.list()); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	for _, id := range []string{made.ProviderID, made.ProviderID, ""} {
		w.mustRemove("m", id)
	}
	for _, id := range []string{"", made.ProviderID} {
		_, err = w.status("m", id)
		wantCode(t, err, codes.NotFound)
	}
	if list, secrets := w.list(), w.secrets(); len(list) != 0 || len(secrets) != 0 {
		t.Errorf("after deletion: got VMs %v and %d Secrets", list, len(secrets))
	}
	w.used.Check(t, nil, "config/rbac/driver-vm-role.yaml")
}

func TestVM_SecondWithSameName(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	w.hosts()
	first := w.mustCreate("m").ProviderID
	w.mustRemove("m", "")
	second := w.mustCreate("m").ProviderID
	if second == first {
		t.Error("a second VM of the same name has the same provider ID")
	}
	_, err := w.status("m", first)
	wantCode(t, err, codes.NotFound)
	w.mustRemove("m", first)
	if len(w.vms()) != 1 || len(w.secrets()) != 1 {
		t.Error("deleting by the first VM's ID removed the second VM or its user data")
	}
	w.mustRemove("m", second)
	if len(w.vms()) != 0 {
		t.Error("the second VM still exists")
	}
}

// TestCreate_CreatesVMAndSecret covers all fields of the VM and its Secret.
func TestCreate_CreatesVMAndSecret(t *testing.T) {
	const checksum = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	sha512 := "sha512:" + strings.Repeat("0a", 64)
	w := newTestDriver(t, vm.Options{Installation: "east/1"}).withClass(object{
		"size": "medium", "cpus": 3, "rootFsSize": 20, "storageClassName": "fast", "migrateStrategy": "Cold", "terminationGracePeriodSeconds": 120,
		"tags":       object{"kubernetes.io/cluster/shoot": "1", "kubernetes.io/role/worker": "1", "team": "a", "vm.metropolis.monogon.dev/cluster": "demo"},
		"image":      object{"url": "https://example.com/disk.img", "checksum": checksum, "format": "QCOW2"},
		"kernelBoot": object{"kernel": object{"url": "http://example.com/k", "checksum": checksum}, "initrd": object{"url": "file:///i", "checksum": sha512}, "commandLine": "console=ttyS0"},
		"addresses":  []string{"10.77.1.5", "fd00::5/128"}, "hypervisorImage": "hypervisor:1",
		"failureDomain": "rack-7", "ports": []object{{"name": "api", "port": 6443}, {"name": "quic", "port": 6443, "protocol": "UDP"}}, "readinessProbe": object{"httpPath": "/readyz", "scheme": "HTTPS"},
		"leaseMode": "FullLeases", "leaseDurationSeconds": 20, "diskAccess": "Direct", "accessModes": []string{"ReadWriteOnce", "ReadWriteMany"}, "volumeMode": "Block",
		"hostSelector": object{"disk": "ssd"}, "antiAffinity": object{"group": "db", "mode": "Required"},
		"resources": object{"requests": object{"cpu": 0.5}, "limits": object{"cpu": 2, "memory": "3Gi"}},
		"dataDisks": []object{{"name": "logs", "size": 5}, {"name": "db", "size": 7, "storageClassName": "slow", "image": object{"url": "https://example.com/db.img"}}},
	})
	w.hosts()
	w.mustCreate("pool-1.a")
	got := w.theVM()
	const name = "pool-1-a-yie34sno72nc"
	claim := func(size, class string) vmv1alpha1.VolumeClaimTemplate {
		return vmv1alpha1.VolumeClaimTemplate{Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany, corev1.ReadWriteOnce},
			VolumeMode:       ptr.To(corev1.PersistentVolumeBlock),
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
			StorageClassName: &class,
		}}
	}
	want := vmv1alpha1.VirtualMachineSpec{
		InitialImage:    &vmv1alpha1.InitialImage{URL: "https://example.com/disk.img", Checksum: checksum, Format: vmv1alpha1.FormatQCOW2},
		HypervisorImage: "hypervisor:1",
		CPUs:            3, Memory: ptr.To(resource.MustParse("2Gi")),
		VolumeClaimTemplate: ptr.To(claim("20Gi", "fast")),
		DataDisks: []vmv1alpha1.DataDisk{
			{Name: "logs", VolumeClaimTemplate: claim("5Gi", "fast")},
			{Name: "db", VolumeClaimTemplate: claim("7Gi", "slow"), InitialImage: &vmv1alpha1.InitialImage{URL: "https://example.com/db.img"}},
		},
		VMIPs:                         []string{"10.77.1.5", "fd00::5/128"},
		FailureDomain:                 "rack-7",
		Ports:                         []vmv1alpha1.Port{{Name: "api", Port: 6443}, {Name: "quic", Port: 6443, Protocol: corev1.ProtocolUDP}},
		ReadinessProbe:                &vmv1alpha1.ReadinessProbe{HTTPPath: "/readyz", Scheme: corev1.URISchemeHTTPS},
		TerminationGracePeriodSeconds: 120,

		MigrateStrategy: vmv1alpha1.MigrateCold, RunStrategy: vmv1alpha1.RunAlways, Mode: vmv1alpha1.ModeRun, LeaseMode: vmv1alpha1.LeaseFullLeases,
		LeaseDurationSeconds: 20, DiskAccess: vmv1alpha1.DiskAccessDirect,
		HostSelector: map[string]string{"disk": "ssd"}, AntiAffinity: &vmv1alpha1.AntiAffinity{Group: "db", Mode: vmv1alpha1.AntiAffinityRequired},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("3Gi")},
		},
		UserData: &vmv1alpha1.UserData{SecretRef: vmv1alpha1.SecretKeyReference{Name: name, Key: "userData"}, HostName: "pool-1.a"},
		KernelBoot: &vmv1alpha1.KernelBoot{
			Kernel: vmv1alpha1.BootFile{URL: "http://example.com/k", Checksum: checksum}, Initrd: &vmv1alpha1.BootFile{URL: "file:///i", Checksum: sha512},
			CommandLine: "console=ttyS0",
		},
	}
	if diff := cmp.Diff(want, got.Spec, cmpopts.IgnoreFields(want, "UUID")); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	identity := `{"installation":"east/1","apiGroup":"machine.sapcloud.io","namespace":"shop","machine":"pool-1.a","version":2}`
	labels := map[string]string{
		vm.LabelInstallation: "sha256-ejczm2dtoplq", vm.LabelAPIGroup: "machine.sapcloud.io", vm.LabelNamespace: "shop", vm.LabelMachine: "pool-1.a",
	}
	wantSecret := metav1.ObjectMeta{
		Name: name, Namespace: w.Namespace, Labels: labels, Annotations: map[string]string{vm.AnnotationIdentity: identity},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "vm.metropolis.monogon.dev/v1alpha1", Kind: "VirtualMachine", Name: name, UID: got.UID}},
	}
	secret := w.secrets()[0]
	ignored := cmpopts.IgnoreFields(metav1.ObjectMeta{}, "UID", "ResourceVersion", "Generation", "CreationTimestamp", "ManagedFields")
	if diff := cmp.Diff(wantSecret, secret.ObjectMeta, ignored); diff != "" {
		t.Errorf("metadata of the secret (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string][]byte{"userData": []byte(userData)}, secret.Data); diff != "" {
		t.Errorf("data of the secret (-want +got):\n%s", diff)
	}
	wantVM := metav1.ObjectMeta{Name: name, Namespace: w.Namespace, Labels: map[string]string{
		vm.LabelCluster: "shoot", vm.LabelRole: "worker", "team": "a", "vm.metropolis.monogon.dev/cluster": "demo",
	}, Annotations: map[string]string{
		vm.AnnotationIdentity: identity,
		vm.AnnotationTags:     `{"kubernetes.io/cluster/shoot":"1","kubernetes.io/role/worker":"1","team":"a","vm.metropolis.monogon.dev/cluster":"demo"}`,
	}}
	for key, value := range labels {
		wantVM.Labels[key] = value
	}
	if diff := cmp.Diff(wantVM, got.ObjectMeta, ignored); diff != "" {
		t.Errorf("metadata of the VM (-want +got):\n%s", diff)
	}
}

// Concurrent calls create one VM and keep its user data.
func TestCreate_ConcurrentCallsCreateOneVM(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	w.hosts()
	const calls = 8
	errs := make([]error, calls)
	ids := make([]string, calls)
	var group sync.WaitGroup
	for i := range calls {
		group.Go(func() {
			resp, err := w.with(w.options).CreateMachine(t.Context(), &driver.CreateMachineRequest{
				Machine: machine("m", ""), MachineClass: w.class, Secret: w.secret,
			})
			if errs[i] = err; err == nil {
				ids[i] = resp.ProviderID
			}
		})
	}
	group.Wait()
	v := w.theVM()
	good := 0
	for i, err := range errs {
		switch {
		case err == nil && ids[i] == "millwright:///"+w.Namespace+"/"+v.Spec.UUID:
			good++
		case !status.Is(err, codes.Aborted):
			t.Errorf("got %q, %v", ids[i], err)
		}
	}
	if good == 0 {
		t.Error("no call returned the VM")
	}
	w.mustCreate("m")
	secrets := w.secrets()
	if len(secrets) != 1 || string(secrets[0].Data["userData"]) != userData || !ownedBy(&secrets[0], v) {
		t.Errorf("got Secrets %+v", secrets)
	}
}

func ownedBy(secret *corev1.Secret, v *vmv1alpha1.VirtualMachine) bool {
	return len(secret.OwnerReferences) == 1 && secret.OwnerReferences[0].UID == v.UID
}

// A call fails at each of its requests, before or after it takes effect. The next call completes the VM. If the
// machine is deleted instead, no object remains.
func TestCreate_ContinuesAfterInterruption(t *testing.T) {
	for after := range 2 {
		for request := range 7 {
			w := newTestDriver(t, vm.Options{})
			w.hosts()
			cutOff := &cutting{WithWatch: w.cluster, at: request, counts: after == 1}
			_, err := w.with(vm.Options{Client: cutOff, Installation: "test"}).create(t.Context(), "m")
			if !cutOff.cut {
				wantCode(t, err, codes.OK)
				continue
			}
			wantCode(t, err, codes.Unavailable)
			if _, err := w.status("m", ""); err == nil && len(w.secrets()) == 0 {
				t.Errorf("request %d: the VM exists, so CreateMachine is not called again, but it has no user data", request)
			}
			w.mustCreate("m")
			if secrets := w.secrets(); len(secrets) != 1 || !ownedBy(&secrets[0], w.theVM()) {
				t.Errorf("request %d: got Secrets %+v", request, secrets)
			}
			w.mustRemove("m", "")

			cutOff.calls, cutOff.cut = 0, false
			_, err = w.with(vm.Options{Client: cutOff, Installation: "test"}).create(t.Context(), "m")
			wantCode(t, err, codes.Unavailable)
			w.mustRemove("m", "")
			if len(w.vms()) != 0 || len(w.secrets()) != 0 {
				t.Errorf("request %d: after deletion, %d VMs and %d Secrets still exist", request, len(w.vms()), len(w.secrets()))
			}
		}
	}
}

// A creation whose context is canceled leaves a VM that the next call adopts.
func TestCreate_CanceledVMIsAdopted(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() {
		_, err := w.CreateMachine(ctx, &driver.CreateMachineRequest{Machine: machine("m", ""), MachineClass: w.class, Secret: w.secret})
		result <- err
	}()
	uuid := w.awaitVM().Spec.UUID
	cancel()
	wantCode(t, <-result, codes.Canceled)
	w.hosts()
	if w.mustCreate("m"); w.theVM().Spec.UUID != uuid {
		t.Error("got another VM")
	}
}

// A VM that is being deleted exists, and DeleteMachine waits until it is gone.
func TestDelete_WaitsForVM(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	w.hosts()
	id := w.mustCreate("m").ProviderID
	w.hold()

	deleted := make(chan error)
	go func() {
		_, err := w.DeleteMachine(t.Context(), &driver.DeleteMachineRequest{Machine: machine("m", id), MachineClass: w.class, Secret: w.secret})
		deleted <- err
	}()
	eventually(t, func() bool { return !w.theVM().DeletionTimestamp.IsZero() })
	_, err := w.status("m", id)
	wantCode(t, err, codes.OK)
	if len(w.list()) != 1 {
		t.Error("the VM is no longer listed")
	}
	_, err = w.create(t.Context(), "m")
	wantCode(t, err, codes.Aborted)
	select {
	case err := <-deleted:
		t.Fatalf("DeleteMachine returned %v before the VM was gone", err)
	default:
	}
	released := w.theVM()
	w.must(w.admin.Patch(t.Context(), withoutFinalizers(released), client.MergeFrom(released)))
	wantCode(t, <-deleted, codes.OK)

	impatient := w.with(vm.Options{Installation: "test", Timeout: 300 * time.Millisecond})
	id = w.mustCreate("m").ProviderID
	w.hold()
	// On a slow machine, the timeout may expire before the first request.
	eventually(t, func() bool {
		wantCode(t, impatient.remove("m", id), codes.DeadlineExceeded)
		return !w.theVM().DeletionTimestamp.IsZero()
	})
}

// hold delays the deletion of the only VM.
func (w *testDriver) hold() {
	w.t.Helper()
	v := w.theVM()
	held := v.DeepCopy()
	held.Finalizers = []string{vmv1alpha1.Finalizer}
	w.must(w.admin.Patch(w.t.Context(), held, client.MergeFrom(v)))
}

func withoutFinalizers(v *vmv1alpha1.VirtualMachine) *vmv1alpha1.VirtualMachine {
	v = v.DeepCopy()
	v.Finalizers = nil
	return v
}
