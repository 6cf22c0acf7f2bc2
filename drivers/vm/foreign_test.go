package vm_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/drivers/vm"
)

// The driver does not adopt, list or delete VMs that it did not create for this machine.
func TestDriver_IgnoresForeignVMs(t *testing.T) {
	cases := map[string]struct {
		reason string
		// change turns the VM of machine "m" into a foreign one.
		change func(v *vmv1alpha1.VirtualMachine)
		// taken reports whether the VM has the name of m's VM.
		taken bool
		// ids are provider IDs with which the VM does not belong to m. A stored ID takes precedence over the class.
		ids []string
	}{
		"of a user": {"the VM has no identity", func(v *vmv1alpha1.VirtualMachine) { v.Annotations, v.Labels = nil, nil }, true, nil},
		"unreadable": {"the identity cannot be decoded", func(v *vmv1alpha1.VirtualMachine) {
			v.Annotations[vm.AnnotationIdentity] = "{"
		}, true, nil},
		"copy":    {"the name does not match the identity", func(v *vmv1alpha1.VirtualMachine) { v.Name = "copy" }, false, nil},
		"cluster": {"the class names another cluster", func(v *vmv1alpha1.VirtualMachine) { v.Labels[vm.LabelCluster] = "other" }, true, []string{""}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newTestDriver(t, vm.Options{})
			w.hosts()
			id := w.mustCreate("m").ProviderID
			made := w.theVM()
			w.mustRemove("m", id)
			made.ObjectMeta = metav1.ObjectMeta{Name: made.Name, Namespace: made.Namespace, Labels: made.Labels, Annotations: made.Annotations}
			tc.change(made)
			w.must(w.admin.Create(t.Context(), made))

			ids := []string{id, ""}
			if tc.ids != nil {
				ids = tc.ids
			}
			for _, id := range ids {
				_, err := w.status("m", id)
				wantCode(t, err, codes.NotFound)
			}
			if list := w.list(); len(list) != 0 {
				t.Errorf("the VM is listed: %v", list)
			}
			if tc.taken {
				_, err := w.create(t.Context(), "m")
				wantCode(t, err, codes.AlreadyExists)
			}
			for _, id := range ids {
				w.mustRemove("m", id)
			}
			if v := w.theVM(); !v.DeletionTimestamp.IsZero() {
				t.Error("the VM is being deleted")
			}
		})
	}
}

// Several control planes, or several namespaces of one, may share a pool.
func TestPool_IsSharedByControlPlanes(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	w.hosts()
	drivers := []*testDriver{w, w.with(vm.Options{Installation: "other"}), w.withClass(nil), w.withClass(object{
		"tags": object{"kubernetes.io/cluster/other": "", "kubernetes.io/role/worker": ""},
	}), w.withClass(object{
		"tags": object{"kubernetes.io/cluster/shoot": "", "kubernetes.io/role/control": ""},
	})}
	drivers[2].class.Namespace = "farm"
	names := []string{"m", "m", "of-farm", "of-other", "of-control"}
	for i, n := range drivers {
		if i == 2 {
			continue // a class in another namespace has no machines here
		}
		id := n.mustCreate(names[i]).ProviderID
		if diff := cmp.Diff(map[string]string{id: names[i]}, n.list()); diff != "" {
			t.Errorf("list of %s (-want +got):\n%s", names[i], diff)
		}
	}
	if list := drivers[2].list(); len(list) != 0 {
		t.Errorf("list of a class in another namespace: %v", list)
	}
	w.mustRemove("m", "")
	if len(w.vms()) != 3 || len(drivers[1].list()) != 1 {
		t.Error("the VM of another installation was deleted, or our VM was not")
	}
}

// An existing VM of the machine is adopted only if it fits the request.
func TestCreate_DoesNotAdoptVMWithOtherSpec(t *testing.T) {
	cases := map[string]struct {
		changes object
		want    codes.Code
	}{
		"size":           {object{"size": "medium"}, codes.AlreadyExists},
		"same size":      {object{"cpus": 1, "memory": "0.5Gi", "rootFsSize": 1}, codes.OK},
		"disk":           {object{"rootFsSize": 2}, codes.AlreadyExists},
		"data disks":     {object{"dataDisks": []object{{"name": "logs", "size": 1}}}, codes.AlreadyExists},
		"storage class":  {object{"storageClassName": "fast"}, codes.AlreadyExists},
		"image":          {object{"image": object{"url": "https://example.com/other.img"}}, codes.AlreadyExists},
		"network":        {object{"networks": []object{{"name": "a", "multus": object{"networkName": "b"}}}}, codes.AlreadyExists},
		"firmware":       {object{"firmware": "UEFI"}, codes.AlreadyExists},
		"same firmware":  {object{"firmware": "BIOS"}, codes.OK},
		"display":        {object{"display": "VNC"}, codes.AlreadyExists},
		"same display":   {object{"display": "None"}, codes.OK},
		"kernel":         {object{"kernelBoot": object{"kernel": object{"url": "https://example.com/k"}}}, codes.AlreadyExists},
		"address":        {object{"addresses": []string{"10.77.1.1"}}, codes.AlreadyExists},
		"pool":           {object{"addressesFromPools": []object{{"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "a"}}}, codes.AlreadyExists},
		"failure domain": {object{"failureDomain": "a"}, codes.AlreadyExists},
		"role":           {object{"tags": object{"kubernetes.io/cluster/shoot": "1", "kubernetes.io/role/other": "1"}}, codes.AlreadyExists},
		"another tag":    {object{"tags": object{"kubernetes.io/cluster/shoot": "1", "kubernetes.io/role/worker": "1", "team": "b"}}, codes.OK},
		"lease mode":     {object{"leaseMode": "FullLeases"}, codes.AlreadyExists},
		"disk access":    {object{"leaseMode": "FullLeases", "diskAccess": "Served"}, codes.AlreadyExists},
		"access modes":   {object{"accessModes": []string{"ReadWriteMany"}}, codes.AlreadyExists},
		"volume mode":    {object{"volumeMode": "Block"}, codes.AlreadyExists},
		"host selector":  {object{"hostSelector": object{"disk": "ssd"}}, codes.AlreadyExists},
		"same placement": {object{
			"leaseMode": "StorageLocking", "diskAccess": "Direct", "accessModes": []string{"ReadWriteOnce"}, "volumeMode": "Filesystem", "hostSelector": object{},
		}, codes.OK},
		"soft placement": {object{"antiAffinity": object{}, "resources": object{"requests": object{"cpu": 1}}}, codes.OK},
		"mutable fields": {object{"migrateStrategy": "Cold", "hypervisorImage": "new", "terminationGracePeriodSeconds": 60}, codes.OK},
	}
	w := newTestDriver(t, vm.Options{})
	w.hosts()
	id := w.mustCreate("m").ProviderID
	for name, tc := range cases {
		resp, err := w.withClass(tc.changes).create(t.Context(), "m")
		if wantCode(t, err, tc.want); err == nil && resp.ProviderID != id {
			t.Errorf("%s: another VM was created", name)
		}
	}
	if v := w.theVM(); !v.DeletionTimestamp.IsZero() {
		t.Error("the VM is being deleted")
	}
}

// A foreign Secret of the same name is not changed.
func TestSecret_ForeignIsNotChanged(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	w.hosts()
	w.mustCreate("m")
	name := w.theVM().Name
	w.mustRemove("m", "")
	foreign := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.Namespace}, StringData: map[string]string{"password": "x"}}
	w.must(w.admin.Create(t.Context(), foreign))
	_, err := w.create(t.Context(), "m")
	wantCode(t, err, codes.AlreadyExists)
	w.mustRemove("m", "")
	left := w.secrets()
	if len(left) != 1 || left[0].ResourceVersion != foreign.ResourceVersion {
		t.Errorf("the foreign Secret was changed: %+v", left)
	}
	if len(w.vms()) != 0 {
		t.Error("a VM was created")
	}
}

// Adoption restores lost user data, but does not replace user data that the VM may have read.
func TestSecret_UserDataIsRestored(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	w.hosts()
	w.mustCreate("m")
	secret := w.secrets()[0]
	w.must(w.admin.Delete(t.Context(), &secret))
	w.mustCreate("m")
	if secrets := w.secrets(); len(secrets) != 1 || string(secrets[0].Data["userData"]) != userData || !ownedBy(&secrets[0], w.theVM()) {
		t.Errorf("got Secrets %+v", secrets)
	}
	w.secret = w.secret.DeepCopy()
	w.secret.Data["userData"] = []byte("new")
	w.mustCreate("m")
	if got := w.secrets()[0].Data["userData"]; string(got) != userData {
		t.Errorf("got user data %q", got)
	}
}

// The next creation uses a Secret that has no VM, and replaces its user data.
func TestSecret_WithoutVMIsReused(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	w.hosts()
	cutOff := &cutting{WithWatch: w.cluster, at: 4}
	_, err := w.with(vm.Options{Client: cutOff, Installation: "test"}).create(t.Context(), "m")
	wantCode(t, err, codes.Unavailable)
	if len(w.secrets()) != 1 || len(w.vms()) != 0 {
		t.Fatalf("got %d Secrets and %d VMs, want only a Secret", len(w.secrets()), len(w.vms()))
	}
	w.secret = w.secret.DeepCopy()
	w.secret.Data["userData"] = []byte("new")
	w.mustCreate("m")
	if got := w.secrets()[0].Data["userData"]; string(got) != "new" {
		t.Errorf("got user data %q", got)
	}
}

// If the pool of the class changes, the driver still finds the VM by its ID.
func TestVM_IsFoundAfterPoolChanged(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	w.hosts()
	id := w.mustCreate("m").ProviderID
	moved := w.withClass(object{"vmPool": "elsewhere"})
	_, err := moved.status("m", id)
	wantCode(t, err, codes.OK)
	moved.mustRemove("m", id)
	if len(w.vms()) != 0 {
		t.Error("the VM still exists")
	}
}

// Provider IDs of other drivers have no VM.
func TestProviderID_OfOtherDrivers(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	w.hosts()
	made := w.mustCreate("m").ProviderID
	for _, id := range []string{"aws:///eu/i-1", "millwright:///", "millwright:///" + w.Namespace + "/", made + "/x", "millwright:///" + w.Namespace + "/0"} {
		_, err := w.status("m", id)
		wantCode(t, err, codes.NotFound)
		w.mustRemove("m", id)
	}
	if v := w.theVM(); !v.DeletionTimestamp.IsZero() || len(w.secrets()) != 1 {
		t.Error("the VM or its Secret was deleted")
	}
	cutOff := &cutting{WithWatch: w.cluster, at: 4} // permits the creation of a Secret, but not of a VM
	_, err := w.with(vm.Options{Client: cutOff, Installation: "test"}).create(t.Context(), "n")
	wantCode(t, err, codes.Unavailable)
	w.mustRemove("n", "aws:///eu/i-1")
	if len(w.secrets()) != 2 {
		t.Error("the Secret without a VM was deleted")
	}
}

// A VM without a disk template does not fit the request.
func TestCreate_DoesNotAdoptVMWithoutDiskTemplate(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	w.hosts()
	w.mustCreate("m")
	v := w.theVM()
	v.Spec.VolumeClaimTemplate, v.Spec.Memory = nil, ptr.To(resource.MustParse("1Gi"))
	w.must(w.admin.Update(t.Context(), v))
	_, err := w.create(t.Context(), "m")
	wantCode(t, err, codes.AlreadyExists)
}
