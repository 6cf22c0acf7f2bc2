package negotiation

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

const hardware = "pc-q35-7.2 tcg 1 CPU"

var (
	own    = Machine{Hardware: hardware, DiskBytes: 1 << 20}
	shared = Machine{Hardware: hardware, SharedDisk: true}
	more   = Machine{Hardware: hardware, DiskBytes: 1 << 20, DataDisks: []DataDisk{{"logs", 1 << 20}, {"db", 3 << 20}}}
)

// with returns a target with data disks.
func with(names ...string) Machine {
	target := Machine{Hardware: hardware}
	for _, name := range names {
		target.DataDisks = append(target.DataDisks, DataDisk{Name: name})
	}
	return target
}

// sharing is like with, for two sides that share the disks.
func sharing(names ...string) Machine {
	machine := with(names...)
	machine.SharedDisk = true
	return machine
}

func qemu(block bool) *vmpb.MigrationProtocol {
	return &vmpb.MigrationProtocol{Kind: &vmpb.MigrationProtocol_QmeuBlock{
		QmeuBlock: &vmpb.MigrationProtocol_Qemu{ConstraintWithBlockmigration: block},
	}}
}

// offered returns an offer with data disks, modified by a function.
func offered(change func(*vmpb.MigrationProtocol_QemuNBD)) []*vmpb.MigrationProtocol {
	protocols := Offer(more)
	change(protocols[0].GetQemuNbd())
	return protocols
}

func nbd(change func(*vmpb.MigrationProtocol_QemuNBD)) *vmpb.MigrationProtocol {
	protocol := Offer(own)[0]
	change(protocol.GetQemuNbd())
	return protocol
}

func TestChoose(t *testing.T) {
	for name, test := range map[string]struct {
		offered []*vmpb.MigrationProtocol
		target  Machine
		want    *vmpb.MigrationProtocol // if nil, INVALID_ARGUMENT
	}{
		"own disks":                                 {Offer(own), Machine{Hardware: hardware}, Offer(own)[0]},
		"a shared disk":                             {Offer(shared), shared, Offer(shared)[0]},
		"data disks":                                {Offer(more), with("logs", "db"), Offer(more)[0]},
		"disks in another order":                    {Offer(more), with("db", "logs"), nil},
		"a missing disk":                            {Offer(more), with("logs"), nil},
		"an additional disk":                        {Offer(more), with("logs", "db", "other"), nil},
		"no data disks on the source":               {Offer(own), with("logs"), nil},
		"no data disks on the target":               {Offer(more), own, nil},
		"a data disk without a size":                {offered(func(p *vmpb.MigrationProtocol_QemuNBD) { p.ConstraintDataDisks[1].Bytes = 0 }), with("logs", "db"), nil},
		"shared data disks":                         {Offer(sharing("logs", "db")), sharing("logs", "db"), Offer(sharing("logs", "db"))[0]},
		"a missing shared disk":                     {Offer(sharing("logs", "db")), sharing("logs"), nil},
		"shared on the source, own on the target":   {Offer(sharing("logs", "db")), with("logs", "db"), nil},
		"own on the source, shared on the target":   {Offer(more), sharing("logs", "db"), nil},
		"the second protocol":                       {append([]*vmpb.MigrationProtocol{qemu(true), {}}, Offer(own)...), own, Offer(own)[0]},
		"nothing":                                   {nil, own, nil},
		"an unknown protocol":                       {[]*vmpb.MigrationProtocol{{}}, own, nil},
		"a copy of a shared disk":                   {Offer(own), shared, nil},
		"no copy of an own disk":                    {Offer(shared), own, nil},
		"QEMU's block migration":                    {[]*vmpb.MigrationProtocol{qemu(true)}, own, nil},
		"QEMU without block migration, own disk":    {[]*vmpb.MigrationProtocol{qemu(false)}, own, nil},
		"QEMU without block migration, shared disk": {[]*vmpb.MigrationProtocol{qemu(false)}, shared, nil},
		"other hardware":                            {Offer(own), Machine{Hardware: "pc-q35-8.2 kvm 1 CPU"}, nil},
		"hardware that is not compared":             {[]*vmpb.MigrationProtocol{nbd(func(p *vmpb.MigrationProtocol_QemuNBD) { p.ConstraintHardware = "" })}, own, nbd(func(p *vmpb.MigrationProtocol_QemuNBD) { p.ConstraintHardware = "" })},
		"without TLS":                               {[]*vmpb.MigrationProtocol{nbd(func(p *vmpb.MigrationProtocol_QemuNBD) { p.ConstraintTls = false })}, own, nil},
		"without a size":                            {[]*vmpb.MigrationProtocol{nbd(func(p *vmpb.MigrationProtocol_QemuNBD) { p.ConstraintDiskBytes = 0 })}, own, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Choose(test.offered, test.target)
			if test.want == nil {
				if status.Code(err) != codes.InvalidArgument {
					t.Errorf("%v, %v; want INVALID_ARGUMENT", got, err)
				}
				return
			}
			if err != nil || !proto.Equal(got, test.want) {
				t.Errorf("%v, %v; want %v", got, err, test.want)
			}
		})
	}
}

// A constraint of a later version is missing in the response, so the source detects it.
func TestChoose_DropsUnknownConstraint(t *testing.T) {
	future := Offer(own)[0]
	future.GetQemuNbd().ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
	wire, err := proto.Marshal(future)
	if err != nil {
		t.Fatal(err)
	}
	offered := &vmpb.MigrationProtocol{}
	if err := proto.Unmarshal(wire, offered); err != nil {
		t.Fatal(err)
	}
	response, err := Choose([]*vmpb.MigrationProtocol{offered}, own)
	if err != nil {
		t.Fatal(err)
	}
	if unknown := response.GetQemuNbd().ProtoReflect().GetUnknown(); len(unknown) != 0 {
		t.Errorf("the response contains unknown fields: %x", unknown)
	}
	withEndpoints(response)
	if _, err := Verify([]*vmpb.MigrationProtocol{future}, response); err == nil {
		t.Error("the source accepted a response without a constraint")
	}
}

// A target of an earlier version does not know data disks. It drops their field and compares the hardware
// differently.
func TestVerify_RejectsEarlierTarget(t *testing.T) {
	response, err := Choose(offered(func(p *vmpb.MigrationProtocol_QemuNBD) { p.ConstraintDataDisks = nil }), own)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(Offer(more), withEndpoints(response)); err == nil {
		t.Error("the source accepted a response that would lose its data disks")
	}
}

// withEndpoints adds the fields that a target adds.
func withEndpoints(response *vmpb.MigrationProtocol) *vmpb.MigrationProtocol {
	p := response.GetQemuNbd()
	p.NegotiatedEndpoint, p.NegotiatedNbdEndpoint, p.NegotiatedExport = "tcp:192.0.2.3:45123", "192.0.2.3:45123", "root"
	return response
}

func TestVerify(t *testing.T) {
	offered := Offer(own)
	if _, err := Verify(offered, withEndpoints(Offer(own)[0])); err != nil {
		t.Errorf("valid response: error = %v", err)
	}
	all := func(exports ...string) *vmpb.MigrationProtocol {
		response := withEndpoints(Offer(more)[0])
		response.GetQemuNbd().NegotiatedDataExports = exports
		return response
	}
	if _, err := Verify(Offer(more), all("a", "b")); err != nil {
		t.Errorf("valid response for data disks: error = %v", err)
	}
	response := Offer(sharing("logs", "db"))[0]
	response.GetQemuNbd().NegotiatedEndpoint = "tcp:192.0.2.3:45123"
	if _, err := Verify(Offer(sharing("logs", "db")), response); err != nil {
		t.Errorf("valid response for shared disks: error = %v", err)
	}
	for name, exports := range map[string][]string{
		"no export": nil, "one export": {"a"}, "three exports": {"a", "b", "c"}, "one export for two disks": {"a", "a"},
		"the export of the root disk": {"a", "root"}, "an empty export": {"a", ""},
	} {
		if got, err := Verify(Offer(more), all(exports...)); err == nil {
			t.Errorf("%s: accepted as %v", name, got)
		}
	}
	for name, response := range map[string]*vmpb.MigrationProtocol{
		"nothing":              {},
		"not offered":          qemu(true),
		"another constraint":   withEndpoints(Offer(shared)[0]),
		"a missing constraint": withEndpoints(nbd(func(p *vmpb.MigrationProtocol_QemuNBD) { p.ConstraintTls = false })),
		"no endpoint":          Offer(own)[0],
		"no disk": func() *vmpb.MigrationProtocol {
			response := withEndpoints(Offer(own)[0])
			response.GetQemuNbd().NegotiatedNbdEndpoint = ""
			return response
		}(),
	} {
		if got, err := Verify(offered, response); err == nil {
			t.Errorf("%s: accepted as %v", name, got)
		}
	}
}
