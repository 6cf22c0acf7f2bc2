// Package negotiation agrees on the protocol of a live migration.
//
// The source sends its [Offer]. The target responds with the result of [Choose] and its addresses. The source
// checks the response with [Verify]. If the target does not know a constraint, its response lacks it, and the
// source does not migrate.
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

// Machine contains the properties that must match on both sides.
type Machine struct {
	// Hardware describes the hardware that the guest sees.
	Hardware string
	// DiskBytes is the size of the source's root disk. It is ignored on a target.
	DiskBytes uint64
	// SharedDisk reports whether both sides use the same disks, which means that no disk is copied.
	SharedDisk bool
	// Served reports whether a disk server serves the disks to both sides.
	Served bool
	// DataDisks are the other disks, in the order of the guest's bus. They are copied if the root disk is.
	DataDisks []DataDisk
}

// DataDisk is a disk other than the root disk.
type DataDisk struct {
	// Name is the name of the disk.
	Name string
	// Bytes is the size of the source's disk. It is ignored on a target.
	Bytes uint64
}

// Offer returns the protocols that a source supports, the best one first. The channels are always encrypted, and
// the disks are copied unless they are shared.
//
// QEMU's own block migration (qmeu_block) is not offered. In tests with a large disk, it completed before
// everything was copied.
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

// Choose returns the first offered protocol that the target supports, with all of its constraints and no other
// fields. It returns a status with code INVALID_ARGUMENT that explains why each protocol was rejected.
func Choose(offered []*vmpb.MigrationProtocol, target Machine) (*vmpb.MigrationProtocol, error) {
	if len(offered) == 0 {
		return nil, status.Error(codes.InvalidArgument, "the request offers no migration protocol")
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

// choose returns the response to one offer, or the reason for rejecting it.
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
		return nil, "this hypervisor does not know the protocol"
	}
}

// refuseQemu returns the reason why QEMU's own protocol cannot be used.
func refuseQemu(offered *vmpb.MigrationProtocol_Qemu, target Machine) string {
	switch {
	case offered.GetConstraintWithBlockmigration():
		return "QEMU's block migration can lose data on the disk"
	case !target.SharedDisk:
		return "the disk would be lost, because it is not copied and the target uses another disk"
	default:
		return "its channel is not encrypted"
	}
}

// chooseNBD sets each field separately, because a copy of the offer would confirm constraints that this version
// does not know.
func chooseNBD(offered *vmpb.MigrationProtocol_QemuNBD, target Machine) (chosen *vmpb.MigrationProtocol_QemuNBD, reason string) {
	block := offered.GetConstraintWithBlockmigration()
	switch reason := refuseDisk(offered, target); {
	case !offered.GetConstraintTls():
		return nil, "its channels are not encrypted"
	case reason != "":
		return nil, reason
	case offered.GetConstraintHardware() != "" && offered.GetConstraintHardware() != target.Hardware:
		return nil, fmt.Sprintf("the guest's hardware is (%s) on the source, but would be (%s) on the target",
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

// refuseDisk returns the reason why the target would not have the guest's disks, or an empty string if it would.
func refuseDisk(offered *vmpb.MigrationProtocol_QemuNBD, target Machine) string {
	switch block := offered.GetConstraintWithBlockmigration(); {
	case !block && !target.SharedDisk:
		return "the disk would be lost, because it is not copied and the target uses another disk"
	case block && target.SharedDisk:
		return "the disk would be copied to itself, because the target uses the same disk"
	case block && offered.GetConstraintDiskBytes() == 0:
		return "the size of the disk is missing"
	case offered.GetConstraintDisksServed() != target.Served:
		return "only one side uses a disk server"
	}
	return ""
}

// chooseDataDisks returns the constraint on the data disks, or the reason why it cannot be met. It accepts only
// the same disk names in the same order: a missing disk would be lost, and an additional disk would be blank.
func chooseDataDisks(offered []*vmpb.DiskSize, block bool, target Machine) (chosen []*vmpb.DiskSize, reason string) {
	same := slices.EqualFunc(offered, target.DataDisks, func(a *vmpb.DiskSize, b DataDisk) bool { return a.GetName() == b.Name })
	if !same {
		return nil, fmt.Sprintf("the data disks are %s on the source, but would be %s on the target", names(offered, (*vmpb.DiskSize).GetName),
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

// names formats a list of names for users.
func names[D any](disks []D, name func(D) string) string {
	var all []string
	for _, disk := range disks {
		all = append(all, name(disk))
	}
	return "(" + strings.Join(all, ", ") + ")"
}

// Verify returns the target's response if it is one of the offered protocols, with all constraints and the
// necessary endpoints.
func Verify(offered []*vmpb.MigrationProtocol, response *vmpb.MigrationProtocol) (*vmpb.MigrationProtocol_QemuNBD, error) {
	got := response.GetQemuNbd()
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
func constraints(response *vmpb.MigrationProtocol_QemuNBD) *vmpb.MigrationProtocol_QemuNBD {
	bare := proto.CloneOf(response)
	bare.NegotiatedEndpoint, bare.NegotiatedNbdEndpoint, bare.NegotiatedExport = "", "", ""
	bare.NegotiatedDataExports = nil
	return bare
}

func checkEndpoints(response *vmpb.MigrationProtocol_QemuNBD) error {
	switch {
	case !strings.HasPrefix(response.GetNegotiatedEndpoint(), "tcp:"):
		return fmt.Errorf("the target's endpoint %q is not tcp:HOST:PORT", response.GetNegotiatedEndpoint())
	case !response.GetConstraintWithBlockmigration():
		return nil
	case response.GetNegotiatedNbdEndpoint() == "" || response.GetNegotiatedExport() == "":
		return errors.New("the target's response has no endpoint or export for the disk")
	}
	exports := append([]string{response.GetNegotiatedExport()}, response.GetNegotiatedDataExports()...)
	disks := 1 + len(response.GetConstraintDataDisks())
	slices.Sort(exports)
	if len(exports) != disks || exports[0] == "" || len(slices.Compact(exports)) != disks {
		return errors.New("the target's response does not have one export for each disk")
	}
	return nil
}
