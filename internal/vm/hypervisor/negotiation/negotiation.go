// Package negotiation agrees on the protocol of a live migration.
//
// The source sends its [Offer]. The target returns the result of [Choose] and adds its addresses. The source checks
// that with [Verify]: a constraint that the target does not know is missing in its response, and then the source does
// not migrate.
package negotiation

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Machine is what must match on both sides.
type Machine struct {
	// Hardware describes what the guest sees of its virtual machine.
	Hardware string
	// DiskBytes is the size of the source's root disk. It is ignored for a target.
	DiskBytes uint64
	// SharedDisk reports whether both sides use the same disks, so that none is copied.
	SharedDisk bool
	// Served reports whether a disk server serves the disks to both sides.
	Served bool
	// DataDisks are the disks in addition to the root disk, in the order of the guest's bus. They are copied if the
	// root disk is.
	DataDisks []DataDisk
}

// DataDisk is a disk in addition to the root disk.
type DataDisk struct {
	// Name of the disk.
	Name string
	// Bytes is the size of the source's disk. It is ignored for a target.
	Bytes uint64
}

// Offer returns the protocols of a source, the best first. The channels are always encrypted, and the disks are
// copied unless they are shared.
//
// QEMU's own block migration (qmeu_block) is not offered: with a large disk it was measured to end before everything
// was copied.
func Offer(source Machine) []*vmpb.MigrationProtocol {
	nbd := &vmpb.MigrationProtocol_QemuNBD{
		ConstraintWithBlockmigration: !source.SharedDisk,
		ConstraintTls:                true,
		ConstraintHardware:           source.Hardware,
		ConstraintDisksServed:        source.Served,
	}
	if !source.SharedDisk {
		nbd.ConstraintDiskBytes = source.DiskBytes
	}
	for _, disk := range source.DataDisks {
		size := &vmpb.DiskSize{Name: disk.Name}
		if !source.SharedDisk {
			size.Bytes = disk.Bytes
		}
		nbd.ConstraintDataDisks = append(nbd.ConstraintDataDisks, size)
	}
	return []*vmpb.MigrationProtocol{{Kind: &vmpb.MigrationProtocol_QemuNbd{QemuNbd: nbd}}}
}

// Choose returns the first offered protocol that the target supports, with its constraints and nothing else. Errors:
// a status with code INVALID_ARGUMENT that explains why each protocol was rejected.
func Choose(offered []*vmpb.MigrationProtocol, target Machine) (*vmpb.MigrationProtocol, error) {
	if len(offered) == 0 {
		return nil, status.Error(codes.InvalidArgument, "no migration protocol is offered")
	}
	var reasons []string
	for _, protocol := range offered {
		chosen, reason := choose(protocol, target)
		if reason == "" {
			return chosen, nil
		}
		reasons = append(reasons, reason)
	}
	return nil, status.Error(codes.InvalidArgument, "no offered migration protocol can be used: "+strings.Join(reasons, "; "))
}

// choose returns the response to one offer, or why it is rejected.
func choose(offered *vmpb.MigrationProtocol, target Machine) (*vmpb.MigrationProtocol, string) {
	switch kind := offered.GetKind().(type) {
	case *vmpb.MigrationProtocol_QmeuBlock:
		return nil, "qmeu_block: " + refuseQemu(kind.QmeuBlock, target)
	case *vmpb.MigrationProtocol_QemuNbd:
		chosen, reason := chooseNBD(kind.QemuNbd, target)
		if reason != "" {
			return nil, "qemu_nbd: " + reason
		}
		return &vmpb.MigrationProtocol{Kind: &vmpb.MigrationProtocol_QemuNbd{QemuNbd: chosen}}, ""
	default:
		return nil, "a protocol that this hypervisor does not know"
	}
}

// refuseQemu returns why QEMU's own protocol cannot be used.
func refuseQemu(offered *vmpb.MigrationProtocol_Qemu, target Machine) string {
	switch {
	case offered.GetConstraintWithBlockmigration():
		return "QEMU's block migration can lose data of the disk"
	case !target.SharedDisk:
		return "the disk would be lost, since it does not travel with the VM and the target has another"
	default:
		return "its channel is not encrypted"
	}
}

// chooseNBD sets the fields one by one: a copy of the offer would confirm constraints that this version does not
// know.
func chooseNBD(offered *vmpb.MigrationProtocol_QemuNBD, target Machine) (chosen *vmpb.MigrationProtocol_QemuNBD, reason string) {
	block := offered.GetConstraintWithBlockmigration()
	switch reason := refuseDisk(offered, target); {
	case !offered.GetConstraintTls():
		return nil, "its channels are not encrypted"
	case reason != "":
		return nil, reason
	case offered.GetConstraintHardware() != "" && offered.GetConstraintHardware() != target.Hardware:
		return nil, fmt.Sprintf("the guest's hardware is (%s) at the source, and would be (%s) here",
			offered.GetConstraintHardware(), target.Hardware)
	}
	disks, reason := chooseDataDisks(offered.GetConstraintDataDisks(), block, target)
	if reason != "" {
		return nil, reason
	}
	return &vmpb.MigrationProtocol_QemuNBD{
		ConstraintWithBlockmigration: block,
		ConstraintTls:                true,
		ConstraintDiskBytes:          offered.GetConstraintDiskBytes(),
		ConstraintHardware:           offered.GetConstraintHardware(),
		ConstraintDataDisks:          disks,
		ConstraintDisksServed:        offered.GetConstraintDisksServed(),
	}, ""
}

// refuseDisk returns why the target would not have the guest's disks, or an empty string if it would.
func refuseDisk(offered *vmpb.MigrationProtocol_QemuNBD, target Machine) string {
	switch block := offered.GetConstraintWithBlockmigration(); {
	case !block && !target.SharedDisk:
		return "the disk would be lost, since it does not travel with the VM and the target has another"
	case block && target.SharedDisk:
		return "the disk would be copied onto itself, since the target has the source's"
	case block && offered.GetConstraintDiskBytes() == 0:
		return "the size of the disk is missing"
	case offered.GetConstraintDisksServed() != target.Served:
		return "the disks are those of a server on one side only"
	}
	return ""
}

// chooseDataDisks returns the constraint on the data disks, or why it cannot be met. Only the same disk names in the
// same order are accepted: a missing disk would be lost, and an additional one would be blank.
func chooseDataDisks(offered []*vmpb.DiskSize, block bool, target Machine) (chosen []*vmpb.DiskSize, reason string) {
	same := slices.EqualFunc(offered, target.DataDisks, func(a *vmpb.DiskSize, b DataDisk) bool { return a.GetName() == b.Name })
	if !same {
		return nil, fmt.Sprintf("the data disks are %s at the source, and would be %s here", names(offered, (*vmpb.DiskSize).GetName),
			names(target.DataDisks, func(disk DataDisk) string { return disk.Name }))
	}
	for _, disk := range offered {
		if block && disk.GetBytes() == 0 {
			return nil, "the size of data disk " + disk.GetName() + " is missing"
		}
		chosen = append(chosen, &vmpb.DiskSize{Name: disk.GetName(), Bytes: disk.GetBytes()})
	}
	return chosen, ""
}

// names lists names for users.
func names[D any](disks []D, name func(D) string) string {
	var all []string
	for _, disk := range disks {
		all = append(all, name(disk))
	}
	return "(" + strings.Join(all, ", ") + ")"
}

// Verify returns the target's response if it is one of the offered protocols, with all constraints and the necessary
// endpoints.
func Verify(offered []*vmpb.MigrationProtocol, answer *vmpb.MigrationProtocol) (*vmpb.MigrationProtocol_QemuNBD, error) {
	got := answer.GetQemuNbd()
	if got == nil {
		return nil, errors.New("the target has chosen a protocol that was not offered")
	}
	for _, protocol := range offered {
		if proto.Equal(protocol.GetQemuNbd(), constraints(got)) {
			return got, checkEndpoints(got)
		}
	}
	return nil, errors.New("the target does not confirm the constraints of the offered protocol")
}

// constraints returns a response without the fields that the target adds.
func constraints(answer *vmpb.MigrationProtocol_QemuNBD) *vmpb.MigrationProtocol_QemuNBD {
	bare := proto.CloneOf(answer)
	bare.NegotiatedEndpoint, bare.NegotiatedNbdEndpoint, bare.NegotiatedExport = "", "", ""
	bare.NegotiatedDataExports = nil
	return bare
}

func checkEndpoints(answer *vmpb.MigrationProtocol_QemuNBD) error {
	switch {
	case !strings.HasPrefix(answer.GetNegotiatedEndpoint(), "tcp:"):
		return fmt.Errorf("the target's endpoint %q is not tcp:HOST:PORT", answer.GetNegotiatedEndpoint())
	case !answer.GetConstraintWithBlockmigration():
		return nil
	case answer.GetNegotiatedNbdEndpoint() == "" || answer.GetNegotiatedExport() == "":
		return errors.New("the target's response has no endpoint or export for the disk")
	}
	exports := append([]string{answer.GetNegotiatedExport()}, answer.GetNegotiatedDataExports()...)
	disks := 1 + len(answer.GetConstraintDataDisks())
	slices.Sort(exports)
	if len(exports) != disks || exports[0] == "" || len(slices.Compact(exports)) != disks {
		return errors.New("the target's response does not have one export for each disk")
	}
	return nil
}
