// Package negotiation agrees on the protocol of a live migration.
//
// The source sends its [Offer]. The target answers with its [Choose], to which it adds where it
// listens. The source looks at that with [Verify]: a constraint that the target does not know is
// missing in its answer, and then the source does not migrate.
package negotiation

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Machine is what must be the same on both sides.
type Machine struct {
	// Hardware is what the guest sees of its virtual machine, as text.
	Hardware string
	// DiskBytes is the size of the source's root disk. Ignored for a target.
	DiskBytes uint64
	// SharedDisk reports whether both sides have the same root disk attached.
	SharedDisk bool
}

// Offer returns the protocols of a source, the best first. The memory's channel is always
// encrypted; so is the disk's, and the disk travels with the VM unless it is shared.
//
// QEMU's own block migration (qmeu_block) is not offered: with a large disk it has been
// measured to end before all was copied.
func Offer(source Machine) []*vmpb.MigrationProtocol {
	nbd := &vmpb.MigrationProtocol_QemuNBD{
		ConstraintWithBlockmigration: !source.SharedDisk,
		ConstraintTls:                true,
		ConstraintHardware:           source.Hardware,
	}
	if !source.SharedDisk {
		nbd.ConstraintDiskBytes = source.DiskBytes
	}
	return []*vmpb.MigrationProtocol{{Kind: &vmpb.MigrationProtocol_QemuNbd{QemuNbd: nbd}}}
}

// Choose returns the first offered protocol that the target can do, with its constraints and
// nothing else. Errors: a status of code INVALID_ARGUMENT that says of each why not.
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

// choose returns the answer to one offer, or why there is none.
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

// chooseNBD sets the fields one by one: a copy of the offer would have the fields that this
// version does not know, as if it had considered them.
func chooseNBD(offered *vmpb.MigrationProtocol_QemuNBD, target Machine) (chosen *vmpb.MigrationProtocol_QemuNBD, reason string) {
	block := offered.GetConstraintWithBlockmigration()
	switch {
	case !offered.GetConstraintTls():
		return nil, "its channels are not encrypted"
	case !block && !target.SharedDisk:
		return nil, "the disk would be lost, since it does not travel with the VM and the target has another"
	case block && target.SharedDisk:
		return nil, "the disk would be copied onto itself, since the target has the source's"
	case block && offered.GetConstraintDiskBytes() == 0:
		return nil, "the size of the disk is missing"
	case offered.GetConstraintHardware() != "" && offered.GetConstraintHardware() != target.Hardware:
		return nil, fmt.Sprintf("the guest's hardware is (%s) at the source, and would be (%s) here",
			offered.GetConstraintHardware(), target.Hardware)
	}
	return &vmpb.MigrationProtocol_QemuNBD{
		ConstraintWithBlockmigration: block,
		ConstraintTls:                true,
		ConstraintDiskBytes:          offered.GetConstraintDiskBytes(),
		ConstraintHardware:           offered.GetConstraintHardware(),
	}, ""
}

// Verify returns the target's answer if it is one of the offered protocols, with all constraints and
// with the endpoints that it needs.
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
	return nil, errors.New("the target does not keep the constraints of what was offered")
}

// constraints returns an answer without what the target negotiated.
func constraints(answer *vmpb.MigrationProtocol_QemuNBD) *vmpb.MigrationProtocol_QemuNBD {
	bare := proto.CloneOf(answer)
	bare.NegotiatedEndpoint, bare.NegotiatedNbdEndpoint, bare.NegotiatedExport = "", "", ""
	return bare
}

func checkEndpoints(answer *vmpb.MigrationProtocol_QemuNBD) error {
	switch {
	case !strings.HasPrefix(answer.GetNegotiatedEndpoint(), "tcp:"):
		return fmt.Errorf("the target's endpoint %q is not tcp:HOST:PORT", answer.GetNegotiatedEndpoint())
	case !answer.GetConstraintWithBlockmigration():
		return nil
	case answer.GetNegotiatedNbdEndpoint() == "" || answer.GetNegotiatedExport() == "":
		return errors.New("the target does not say where the disk goes")
	}
	return nil
}
