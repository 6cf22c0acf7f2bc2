package vm_test

import (
	"context"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/drivers/vm"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// accepting is a client of an empty cluster. Creations fail, and it records the last VM.
type accepting struct {
	client.WithWatch
	desired *vmv1alpha1.VirtualMachine
}

var errAccepted = status.Error(codes.DataLoss, "the specification was accepted")

func newAccepting(t testing.TB) *accepting {
	t.Helper()
	a := &accepting{}
	inner, err := vm.NewClient(nowhere)
	if err != nil {
		t.Fatal(err)
	}
	a.WithWatch = interceptor.NewClient(inner, interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
			return notFound(key.Name)
		},
		Create: func(_ context.Context, _ client.WithWatch, obj client.Object, _ ...client.CreateOption) error {
			a.desired, _ = obj.(*vmv1alpha1.VirtualMachine)
			return errAccepted
		},
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return nil },
	})
	return a
}

func (a *accepting) create(t testing.TB, raw []byte) error {
	a.desired = nil
	_, err := vm.New(vm.Options{Client: a}).CreateMachine(t.Context(), &driver.CreateMachineRequest{
		Machine: machine("m", ""), MachineClass: classOf(raw), Secret: &corev1.Secret{},
	})
	return err
}

func classOf(raw []byte) *v1alpha1.MachineClass {
	return fixture.In("shop", fixture.MachineClass(func(class *v1alpha1.MachineClass) { class.ProviderSpec.Raw = raw }))
}

func specOf(t testing.TB, changes object) []byte {
	t.Helper()
	spec := object{
		"vmPool": "pool", "size": "small", "image": object{"url": "https://example.com/i"},
		"tags": object{"kubernetes.io/cluster/shoot": "", "kubernetes.io/role/worker": ""},
	}
	maps.Copy(spec, changes)
	maps.DeleteFunc(spec, func(_ string, value any) bool { return value == nil })
	raw, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// The message names every invalid field and nothing else.
func TestProviderSpec_NamesInvalidFields(t *testing.T) {
	const long = 300
	file := func(url string) object { return object{"url": url} }
	cases := map[string]struct {
		changes object
		code    codes.Code
		want    []string
	}{
		"no pool":       {object{"vmPool": nil}, codes.InvalidArgument, []string{"providerSpec.vmPool: Required value: must be the namespace of the VirtualMachines"}},
		"empty pool":    {object{"vmPool": ""}, codes.InvalidArgument, []string{"providerSpec.vmPool: Required value: must be the namespace of the VirtualMachines"}},
		"pool":          {object{"vmPool": "A_b"}, codes.InvalidArgument, []string{"providerSpec.vmPool: Invalid value: \"A_b\": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"}},
		"no size":       {object{"size": nil, "cpus": 2}, codes.InvalidArgument, []string{"providerSpec.size: Required value: set a size, or both cpus and memory"}},
		"size":          {object{"size": "huge"}, codes.InvalidArgument, []string{`providerSpec.size: Unsupported value: "huge": supported values: "xsmall", "small", "medium", "large", "xlarge"`}},
		"size's kind":   {object{"size": 3}, codes.InvalidArgument, []string{"providerSpec.size: unexpected number"}},
		"cpus":          {object{"cpus": 0}, codes.OutOfRange, []string{"providerSpec.cpus: Invalid value: 0: must be between 1 and 255"}},
		"cpus' kind":    {object{"cpus": "2"}, codes.InvalidArgument, []string{"providerSpec.cpus: unexpected string"}},
		"half a cpu":    {object{"cpus": 0.5}, codes.InvalidArgument, []string{"providerSpec.cpus: unexpected number 0.5"}},
		"memory":        {object{"memory": "1Mi"}, codes.OutOfRange, []string{`providerSpec.memory: Invalid value: "1Mi": must be between 32Mi and 16Ti`}},
		"memory's unit": {object{"memory": "1GB"}, codes.InvalidArgument, []string{`providerSpec.memory: Invalid value: "1GB": must be like 512Mi or 2Gi`}},
		"memory's form": {object{"memory": "128e6"}, codes.InvalidArgument, []string{`providerSpec.memory: Invalid value: "128e6": must be like 512Mi or 2Gi`}},
		"memory odd":    {object{"memory": "64000000"}, codes.InvalidArgument, []string{`providerSpec.memory: Invalid value: "64000000": must be a multiple of 1Mi`}},
		"disk":          {object{"rootFsSize": 65537}, codes.OutOfRange, []string{"providerSpec.rootFsSize: Invalid value: 65537: must be between 1 and 65536"}},
		"storage class": {object{"storageClassName": "a/b"}, codes.InvalidArgument, []string{"providerSpec.storageClassName: Invalid value: \"a/b\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"}},
		"data disks": {object{"dataDisks": []object{{"name": "A", "size": 1}, {"name": "a", "size": 1}, {"name": "a", "size": 1}, {"name": "b", "size": 1, "image": file("ftp://x/y")}}}, codes.InvalidArgument, []string{
			`providerSpec.dataDisks[0].name: Invalid value: "A": must be 1 to 20 lower-case letters, digits and hyphens, and start and end with a letter or digit`,
			`providerSpec.dataDisks[2].name: Duplicate value: "a"`,
			"providerSpec.dataDisks[3].image.url: Invalid value: must be like https://HOST/PATH, http://HOST/PATH or file:///PATH"}},
		"a data disk without size": {object{"dataDisks": []object{{"name": "a"}}}, codes.OutOfRange, []string{"providerSpec.dataDisks[0].size: Invalid value: 0: must be between 1 and 65536"}},
		"a hundred data disks":     {object{"dataDisks": make([]object, 100)}, codes.InvalidArgument, []string{"providerSpec.dataDisks: Too many: 100: must have at most 12 items"}},
		"no tags": {object{"tags": nil}, codes.InvalidArgument, []string{
			"providerSpec.tags: Invalid value: must have exactly one key kubernetes.io/cluster/<NAME>, but has 0", "providerSpec.tags: Invalid value: must have exactly one key kubernetes.io/role/<NAME>, but has 0"}},
		"tags' kind": {object{"tags": []string{"a"}}, codes.InvalidArgument, []string{"providerSpec.tags: unexpected array"}},
		"tags": {object{"tags": object{
			"kubernetes.io/cluster/a": "", "kubernetes.io/cluster/b": "", "kubernetes.io/role/": "", "y": "a\nb", "z": strings.Repeat("z", long),
			"driver.millwright.dev/machine": "x",
		}}, codes.InvalidArgument, []string{
			"providerSpec.tags[driver.millwright.dev/machine]: Invalid value: the prefix is reserved for the driver",
			"providerSpec.tags[y]: Invalid value: must not contain control characters",
			"providerSpec.tags[z]: Invalid value: the key must have 1 to 256 bytes, and the value at most 256 bytes",
			"providerSpec.tags: Invalid value: must have exactly one key kubernetes.io/cluster/<NAME>, but has 2",
			"providerSpec.tags[kubernetes.io/role/]: Invalid value: the part after kubernetes.io/role/ must be a non-empty label value"}},
		"a tag's kind":    {object{"tags": object{"x": 1}}, codes.InvalidArgument, []string{"providerSpec.tags: unexpected number"}},
		"nothing to boot": {object{"image": nil}, codes.InvalidArgument, []string{"providerSpec: Required value: set image or kernelBoot to boot the VM"}},
		"image": {object{"image": object{"url": "ftp://x/y", "checksum": "md5:1", "format": "vmdk", "checksums": ""}}, codes.InvalidArgument, []string{
			"providerSpec.image.url: Invalid value: must be like https://HOST/PATH, http://HOST/PATH or file:///PATH",
			`providerSpec.image.checksum: Invalid value: "md5:1": must be "sha256:" and 64, or "sha512:" and 128, lower-case hexadecimal digits`,
			`providerSpec.image.format: Unsupported value: "vmdk": supported values: "Raw", "QCOW2"`,
			`providerSpec: unknown field "image.checksums"`}},
		"image without URL": {object{"image": object{"ulr": "https://example.com"}}, codes.InvalidArgument, []string{
			"providerSpec.image.url: Required value", `providerSpec: unknown field "image.ulr"`}},
		"password":     {object{"image": file("https://me:hunter2@example.com/i")}, codes.InvalidArgument, []string{"providerSpec.image.url: Invalid value: must not contain a user or password, because all users who can read the VirtualMachine would see them"}},
		"no URL":       {object{"image": file("https://example.com:hunter2/i")}, codes.InvalidArgument, []string{"providerSpec.image.url: Invalid value: must be a URL"}},
		"blank in URL": {object{"image": file("https://example.com/a b")}, codes.InvalidArgument, []string{"providerSpec.image.url: Invalid value: must be a URL"}},
		"file URL":     {object{"image": file("file://etc/passwd")}, codes.InvalidArgument, []string{"providerSpec.image.url: Invalid value: must be like https://HOST/PATH, http://HOST/PATH or file:///PATH"}},
		"kernel": {object{"kernelBoot": object{"initrd": object{}, "commandLine": "a\nb", "cmdline": ""}}, codes.InvalidArgument, []string{
			"providerSpec.kernelBoot.kernel.url: Required value", "providerSpec.kernelBoot.initrd.url: Required value",
			`providerSpec.kernelBoot.commandLine: Invalid value: "a\nb": must be one line, without control characters`,
			`providerSpec: unknown field "kernelBoot.cmdline"`}},
		"display": {object{"display": "vnc"}, codes.InvalidArgument, []string{`providerSpec.display: Unsupported value: "vnc": supported values: "None", "VNC"`}},
		"networks": {object{"networks": []object{{"name": "A", "multus": object{"networkName": "a/b/c"}}, {"name": "a", "multus": object{"networkName": "b"}}, {"name": "a", "multus": object{"networkName": "n/b"}}}}, codes.InvalidArgument, []string{
			`providerSpec.networks[0].name: Invalid value: "A": must consist of 1 to 63 lower-case letters, digits and hyphens`, `providerSpec.networks[0].multus.networkName: Invalid value: "a/b/c": must be NAMESPACE/NAME or NAME`,
			`providerSpec.networks[2].name: Duplicate value: "a"`}},
		"networks with addresses": {object{"networks": []object{{"name": "a", "multus": object{"networkName": "b"}, "macAddress": "02:00:00:00:00:01"}}}, codes.InvalidArgument, []string{`providerSpec: unknown field "networks[0].macAddress"`}},
		"firmware":                {object{"firmware": "uefi"}, codes.InvalidArgument, []string{`providerSpec.firmware: Unsupported value: "uefi": supported values: "BIOS", "UEFI"`}},
		"firmware and kernel": {object{"firmware": "UEFI", "kernelBoot": object{"kernel": file("file:///k")}}, codes.InvalidArgument, []string{
			`providerSpec.firmware: Invalid value: "UEFI": cannot be combined with kernelBoot, which boots without firmware`}},
		"command line": {object{"kernelBoot": object{"kernel": file("file:///k"), "commandLine": strings.Repeat("x", 2048)}}, codes.InvalidArgument, []string{"providerSpec.kernelBoot.commandLine: Too long: may not be more than 2047 bytes"}},
		"addresses": {object{"addresses": []any{"10.0.0.1", "10.0.0.0/24", "::ffff:10.0.0.1", "fe80::1%eth0", "10.0.0.2/32"}}, codes.InvalidArgument, []string{
			`providerSpec.addresses[1]: Invalid value: "10.0.0.0/24": must be an IP address`,
			`providerSpec.addresses[2]: Invalid value: "::ffff:10.0.0.1": must be an IP address`,
			`providerSpec.addresses[3]: Invalid value: "fe80::1%eth0": must be an IP address`,
			`providerSpec.addresses[4]: Invalid value: "10.0.0.2/32": must not be a second address of the same IP version`}},
		"pools": {object{"addresses": []any{"10.0.0.1"}, "addressesFromPools": []object{{"apiGroup": "a", "kind": "-", "name": "b"}, {"kind": "B", "name": "B"}, {"apiGroup": "a", "kind": "-", "name": "b"}}}, codes.InvalidArgument, []string{
			"providerSpec.addressesFromPools: Too many: 3: must have at most 2 items", "providerSpec.addressesFromPools: Forbidden: cannot be combined with addresses",
			`providerSpec.addressesFromPools[0].kind: Invalid value: "-": must be the kind of a pool, such as InClusterIPPool`,
			`providerSpec.addressesFromPools[1].apiGroup: Invalid value: "": ` + notASubdomain, `providerSpec.addressesFromPools[1].name: Invalid value: "B": ` + notASubdomain,
			`providerSpec.addressesFromPools[2].kind: Invalid value: "-": must be the kind of a pool, such as InClusterIPPool`,
			`providerSpec.addressesFromPools[2]: Duplicate value: "a/-/b"`}},
		"an address's kind": {object{"addresses": []any{1}}, codes.InvalidArgument, []string{"providerSpec.addresses: unexpected number"}},
		"failure domain": {object{"failureDomain": "a/b"}, codes.InvalidArgument, []string{
			"providerSpec.failureDomain: Invalid value: \"a/b\": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"}},
		"strategy":   {object{"migrateStrategy": "live"}, codes.InvalidArgument, []string{`providerSpec.migrateStrategy: Unsupported value: "live": supported values: "Live", "Cold"`}},
		"grace":      {object{"terminationGracePeriodSeconds": 0}, codes.OutOfRange, []string{"providerSpec.terminationGracePeriodSeconds: Invalid value: 0: must be between 1 and 3600"}},
		"long grace": {object{"terminationGracePeriodSeconds": 3601}, codes.OutOfRange, []string{"providerSpec.terminationGracePeriodSeconds: Invalid value: 3601: must be between 1 and 3600"}},
		"hypervisor": {object{"hypervisorImage": "a b"}, codes.InvalidArgument, []string{"providerSpec.hypervisorImage: Invalid value: \"a b\": must not contain blanks"}},
		"ports": {object{"ports": []object{{"name": "ssh", "port": 22}, {"name": "ssh", "port": 22}, {"name": "a_b", "port": 23}}}, codes.InvalidArgument, []string{
			`providerSpec.ports[1].name: Duplicate value: "ssh"`, `providerSpec.ports[1].port: Duplicate value: 22`,
			`providerSpec.ports[2].name: Invalid value: "a_b": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)`}},
		"port protocols": {object{"ports": []object{{"name": "a", "port": 53, "protocol": "TCP"}, {"name": "b", "port": 53}, {"name": "c", "port": 53, "protocol": "UDP"}, {"name": "d", "port": 54, "protocol": "udp"}}}, codes.InvalidArgument, []string{
			`providerSpec.ports[1].port: Duplicate value: 53`, `providerSpec.ports[3].protocol: Unsupported value: "udp": supported values: "TCP", "UDP"`}},
		"only UDP": {object{"ports": []object{{"name": "dns", "port": 53, "protocol": "UDP"}}}, codes.InvalidArgument, []string{
			"providerSpec.readinessProbe.port: Required value: ports has no TCP port, and the guest is checked over TCP"}},
		"port numbers": {object{"ports": []object{{"name": "a", "port": 0}, {"name": "b", "port": 65536}}}, codes.OutOfRange, []string{
			"providerSpec.ports[0].port: Invalid value: 0: must be between 1 and 65535", "providerSpec.ports[1].port: Invalid value: 65536: must be between 1 and 65535"}},
		"probe": {object{"readinessProbe": object{"httpPath": "x", "scheme": "FTP", "port": -1}}, codes.InvalidArgument, []string{
			"providerSpec.readinessProbe: Forbidden: needs ports", "providerSpec.readinessProbe.port: Invalid value: -1: must be between 1 and 65535",
			`providerSpec.readinessProbe.httpPath: Invalid value: "x": must be an encoded path such as /healthz`,
			`providerSpec.readinessProbe.scheme: Unsupported value: "FTP": supported values: "HTTP", "HTTPS"`}},
		"probe path": {object{"ports": []object{{"name": "a", "port": 80}}, "readinessProbe": object{"httpPath": "/%zz"}}, codes.InvalidArgument, []string{
			`providerSpec.readinessProbe.httpPath: Invalid value: "/%zz": must be an encoded path such as /healthz`}},
		"leases": {object{"leaseMode": "None", "diskAccess": "served", "volumeMode": "block", "accessModes": []string{"ReadOnlyMany", "ReadWriteOnce", "ReadWriteOnce"}}, codes.InvalidArgument, []string{
			`providerSpec.leaseMode: Unsupported value: "None": supported values: "StorageLocking", "FullLeases"`,
			`providerSpec.diskAccess: Unsupported value: "served": supported values: "Direct", "Served"`,
			`providerSpec.volumeMode: Unsupported value: "block": supported values: "Filesystem", "Block"`,
			`providerSpec.accessModes[0]: Unsupported value: "ReadOnlyMany": supported values: "ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"`,
			`providerSpec.accessModes[2]: Duplicate value: "ReadWriteOnce"`}},
		"access modes": {object{"accessModes": []string{"ReadWriteOncePod", "ReadWriteOnce"}}, codes.InvalidArgument, []string{
			`providerSpec.accessModes: Invalid value: ["ReadWriteOncePod","ReadWriteOnce"]: ReadWriteOncePod cannot be combined with other access modes`}},
		"lease duration":         {object{"leaseMode": "FullLeases", "leaseDurationSeconds": 5}, codes.OutOfRange, []string{"providerSpec.leaseDurationSeconds: Invalid value: 5: must be between 6 and 600"}},
		"long lease":             {object{"leaseMode": "FullLeases", "leaseDurationSeconds": 601}, codes.OutOfRange, []string{"providerSpec.leaseDurationSeconds: Invalid value: 601: must be between 6 and 600"}},
		"duration without lease": {object{"leaseDurationSeconds": 60}, codes.InvalidArgument, []string{"providerSpec.leaseDurationSeconds: Forbidden: needs leaseMode FullLeases"}},
		"served without lease":   {object{"diskAccess": "Served", "leaseMode": "StorageLocking"}, codes.InvalidArgument, []string{`providerSpec.diskAccess: Invalid value: "Served": needs leaseMode FullLeases`}},
		"served devices": {object{"diskAccess": "Served", "leaseMode": "FullLeases", "volumeMode": "Block"}, codes.InvalidArgument, []string{
			`providerSpec.diskAccess: Invalid value: "Served": needs disks of volumeMode Filesystem`}},
		"shared devices without lease": {object{"volumeMode": "Block", "accessModes": []string{"ReadWriteMany"}}, codes.InvalidArgument, []string{
			`providerSpec.accessModes: Invalid value: ["ReadWriteMany"]: block devices with access mode ReadWriteMany have no locks between hosts`, `use leaseMode FullLeases, or access mode ReadWriteOnce`}},
		"host selector": {object{"hostSelector": object{"a": "b c", "d/": "e"}}, codes.InvalidArgument, []string{
			"providerSpec.hostSelector[a]: Invalid value: \"b c\": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
			`providerSpec.hostSelector: Invalid value: "d/": name part must be non-empty`,
			"providerSpec.hostSelector: Invalid value: \"d/\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"}},
		"anti-affinity": {object{"antiAffinity": object{"mode": "Soft", "group": strings.Repeat("g", 64)}}, codes.InvalidArgument, []string{
			`providerSpec.antiAffinity.group: Invalid value: "` + strings.Repeat("g", 64) + `": must be no more than 63 bytes`,
			`providerSpec.antiAffinity.mode: Unsupported value: "Soft": supported values: "Preferred", "Required", "None"`}},
		"resources": {object{"resources": object{"requests": object{"cpu": "1e999999999", "memory": -1}, "limits": object{"cpu": true}, "claims": []string{}}}, codes.InvalidArgument, []string{
			`providerSpec.resources.requests[cpu]: Invalid value: "1e999999999": must be like 500m or 2Gi`,
			`providerSpec.resources.requests[memory]: Invalid value: "-1": must not be negative`,
			`providerSpec.resources.limits[cpu]: Invalid value: "true": must be like 500m or 2Gi`,
			`providerSpec: unknown field "resources.claims"`}},
		"resource limits": {object{"resources": object{"requests": object{"cpu": 2, "memory": "1Gi"}, "limits": object{"cpu": 1.5, "memory": "512Mi"}}}, codes.InvalidArgument, []string{
			`providerSpec.resources.requests[cpu]: Invalid value: "2": must not be more than the limit 1500m`,
			`providerSpec.resources.requests[memory]: Invalid value: "1Gi": must not be more than the limit 512Mi`,
			`providerSpec.resources.limits[memory]: Invalid value: "512Mi": must be more than the memory of the guest, which is 512Mi`, "leave memory for the hypervisor"}},
		"unknown": {object{"vmpol": "x", "somethingElse": true}, codes.InvalidArgument, []string{
			`providerSpec: unknown field "somethingElse"`, `providerSpec: unknown field "vmpol"`}},
		"sizes and more": {object{"cpus": 999, "kernelboot": object{}}, codes.InvalidArgument, []string{
			"providerSpec.cpus: Invalid value: 999: must be between 1 and 255", `providerSpec: unknown field "kernelboot"`}},
	}
	cluster := newAccepting(t)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			checkProblems(t, cluster, specOf(t, tc.changes), tc.code, tc.want)
			_, poolDiffers := tc.changes["vmPool"]
			_, tagsDiffer := tc.changes["tags"]
			checkFinding(t, cluster, specOf(t, tc.changes), poolDiffers || tagsDiffer, poolDiffers || tagsDiffer)
		})
	}
	for name, raw := range map[string]string{"not JSON": "{", "two": "{} {}", "list": "[]", "null": "null"} {
		err := cluster.create(t, []byte(raw))
		if wantCode(t, err, codes.InvalidArgument); err != nil && !strings.Contains(err.Error(), "providerSpec: ") {
			t.Errorf("%s: %v", name, err)
		}
		checkFinding(t, cluster, []byte(raw), true, true)
	}
}

// TestDriver_MessagesAreLimited: messages fit into the status of a Machine.
func TestDriver_MessagesAreLimited(t *testing.T) {
	wrong := object{"size": strings.Repeat("ä", 1000)}
	for i := range 100 {
		wrong[strings.Repeat("é", 500+i)] = ""
	}
	err := newAccepting(t).create(t, specOf(t, wrong))
	wantCode(t, err, codes.InvalidArgument)
	s, _ := status.FromError(err)
	if message := s.Message(); len(message) > 12_000 || !strings.HasSuffix(message, "; and 81 more") || !utf8.ValidString(message) {
		t.Errorf("%d bytes: %s", len(message), message)
	}
}

// notASubdomain is the message about a value that is not the name of an object.
const notASubdomain = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character " +
	`(e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`

// checkProblems checks the errors of the methods that need the whole specification.
func checkProblems(t *testing.T, cluster client.WithWatch, raw []byte, code codes.Code, want []string) {
	t.Helper()
	d, secret, m := vm.New(vm.Options{Client: cluster}), &corev1.Secret{}, machine("m", "")
	_, created := d.CreateMachine(t.Context(), &driver.CreateMachineRequest{Machine: m, MachineClass: classOf(raw), Secret: secret})
	_, updated := d.UpdateMachine(t.Context(), &driver.UpdateMachineRequest{Machine: m, MachineClass: classOf(raw), Secret: secret})
	for _, err := range []error{created, updated} {
		wantCode(t, err, code)
		s, _ := status.FromError(err)
		if diff := cmp.Diff(want, strings.Split(s.Message(), "; ")); diff != "" {
			t.Errorf("problems (-want +got):\n%s", diff)
		}
	}
}

// checkFinding checks that the methods that only look for VMs accept or reject a specification as expected. The cluster must be
// empty.
func checkFinding(t *testing.T, cluster client.WithWatch, raw []byte, rejectsMachine, rejectsList bool) {
	t.Helper()
	d, secret, m := vm.New(vm.Options{Client: cluster}), &corev1.Secret{}, machine("m", "")
	_, located := d.LocateMachine(t.Context(), &driver.LocateMachineRequest{Machine: m, MachineClass: classOf(raw), Secret: secret})
	_, found := d.GetMachineStatus(t.Context(), &driver.GetMachineStatusRequest{Machine: m, MachineClass: classOf(raw), Secret: secret})
	_, deleted := d.DeleteMachine(t.Context(), &driver.DeleteMachineRequest{Machine: m, MachineClass: classOf(raw), Secret: secret})
	_, listed := d.ListMachines(t.Context(), &driver.ListMachinesRequest{MachineClass: classOf(raw), Secret: secret})
	want := func(rejected bool, otherwise codes.Code) codes.Code {
		if rejected {
			return codes.InvalidArgument
		}
		return otherwise
	}
	wantCode(t, located, want(rejectsMachine, codes.OK))
	wantCode(t, found, want(rejectsMachine, codes.NotFound))
	wantCode(t, deleted, want(rejectsMachine, codes.OK))
	wantCode(t, listed, want(rejectsList, codes.OK))
}

// TestDriver_FindsVMsOnlyWithOwner checks that calls look for VMs only if the specification names the pool and the cluster, and
// list VMs only if it also names the role. Other tags may be invalid.
func TestDriver_FindsVMsOnlyWithOwner(t *testing.T) {
	const cluster, role = "kubernetes.io/cluster/shoot", "kubernetes.io/role/worker"
	for name, tc := range map[string]struct {
		changes                     object
		rejectsMachine, rejectsList bool
	}{
		"invalid tag":     {object{"tags": object{cluster: "", role: "", "a": "b\nc"}}, false, false},
		"no role":         {object{"tags": object{cluster: ""}}, false, true},
		"two roles":       {object{"tags": object{cluster: "", role: "", role + "s": ""}}, false, true},
		"no cluster":      {object{"tags": object{role: ""}}, true, true},
		"two clusters":    {object{"tags": object{cluster: "", cluster + "s": "", role: ""}}, true, true},
		"empty cluster":   {object{"tags": object{"kubernetes.io/cluster/": "", role: ""}}, true, true},
		"no pool":         {object{"vmPool": nil}, true, true},
		"invalid pool":    {object{"vmPool": "A"}, true, true},
		"misspelled pool": {object{"vmPool": nil, "VMPool": "pool"}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			checkFinding(t, newAccepting(t), specOf(t, tc.changes), tc.rejectsMachine, tc.rejectsList)
		})
	}
}

func TestProviderSpec_Valid(t *testing.T) {
	cluster := newAccepting(t)
	cases := map[string]struct {
		changes object
		cpus    int32
		memory  string
	}{
		"size":           {object{}, 1, "512Mi"},
		"without a size": {object{"size": nil, "cpus": 3, "memory": "1.5Gi"}, 3, "1536Mi"},
		"more memory":    {object{"size": "xlarge", "memory": "1Ti"}, 8, "1Ti"},
		"typed":          {object{"apiVersion": "vm/v1", "kind": "VM", "rootFsSize": nil, "cpus": nil}, 1, "512Mi"},
		"only a kernel":  {object{"image": nil, "kernelBoot": object{"kernel": object{"url": "file:///k"}}}, 1, "512Mi"},
		"odd tags": {object{"tags": object{
			"kubernetes.io/cluster/a.b": "x y", "kubernetes.io/role/worker": "", "no label!": "", "a": "no value!"}}, 1, "512Mi"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if err := cluster.create(t, specOf(t, tc.changes)); !status.Is(err, codes.DataLoss) {
				t.Fatal(err)
			}
			got := cluster.desired.Spec
			if got.CPUs != tc.cpus || got.Memory.String() != tc.memory {
				t.Errorf("got %d CPUs and %s, want %d and %s", got.CPUs, got.Memory, tc.cpus, tc.memory)
			}
		})
	}
}

// FuzzProviderSpec_IsValidOrRejected: a provider specification either results in a VM that the API server would accept, or in an
// error that names the provider specification.
func FuzzProviderSpec_IsValidOrRejected(f *testing.F) {
	f.Add([]byte("{}"))
	f.Add(specOf(f, object{"memory": "1Gi", "cpus": 2, "addresses": []string{"10.0.0.1"}}))
	f.Add(specOf(f, object{"leaseMode": "FullLeases", "volumeMode": "Block", "accessModes": []string{"ReadWriteMany"}, "resources": object{"limits": object{"memory": "1Gi", "cpu": 0.5}}}))
	f.Add(specOf(f, object{"kernelBoot": object{"kernel": object{"url": "http://h/k"}, "commandLine": "a"}, "rootFsSize": 1e300}))
	cluster := newAccepting(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		err := cluster.create(t, raw)
		switch status.Code(err) {
		case codes.InvalidArgument, codes.OutOfRange:
			if !strings.Contains(err.Error(), "providerSpec") || cluster.desired != nil {
				t.Errorf("got error %v and VM %v", err, cluster.desired)
			}
		case codes.DataLoss:
			checkAccepted(t, cluster.desired)
		default:
			t.Errorf("got unexpected error %v", err)
		}
	})
}

func checkAccepted(t *testing.T, v *vmv1alpha1.VirtualMachine) {
	t.Helper()
	memory := v.Spec.Memory.Value()
	if v.Namespace == "" || v.Spec.CPUs < 1 || memory < 32<<20 || memory%(1<<20) != 0 || v.Spec.UUID == "" {
		t.Errorf("got invalid VM %+v", v)
	}
	if v.Spec.InitialImage == nil && v.Spec.KernelBoot == nil {
		t.Error("the VM has nothing to boot from")
	}
}
