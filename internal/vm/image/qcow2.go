package image

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// The header of a QCOW2 file, as docs/interop/qcow2 of QEMU's source has it: numbers
// are big-endian; version 2 ends after 72 bytes, version 3 says where it ends, after
// 104 or later.
const (
	headerLength2 = 72
	headerLength3 = 104

	atVersion      = 4
	atBackingFile  = 8
	atClusterBits  = 20
	atVirtualSize  = 24
	atCrypt        = 32
	atIncompatible = 72
	atHeaderLength = 100
)

// Incompatible features: who does not know one cannot read the file.
const (
	featureDirty        = 1 << 0 // reference counts may be wrong, which readers ignore
	featureCorrupt      = 1 << 1
	featureDataFile     = 1 << 2
	featureCompression  = 1 << 3
	featureExtendedL2   = 1 << 4
	featuresWeCanHandle = featureDirty | featureCompression | featureExtendedL2
)

// parseQCOW2 looks at the first bytes of a file for everything because of which it must
// not be given to QEMU, and returns the size of the disk in it.
func parseQCOW2(start []byte) (virtualSize int64, err error) {
	if err := checkVersion(start); err != nil {
		return 0, err
	}
	number := binary.BigEndian
	if number.Uint64(start[atBackingFile:]) != 0 {
		return 0, errors.New("it needs a backing file, and only images that are complete are taken")
	}
	if number.Uint32(start[atCrypt:]) != 0 {
		return 0, errors.New("it is encrypted")
	}
	if bits := number.Uint32(start[atClusterBits:]); bits < 9 || bits > 21 {
		return 0, fmt.Errorf("its QCOW2 header is garbled: clusters of 2^%d bytes", bits)
	}
	size := number.Uint64(start[atVirtualSize:])
	if size == 0 || size > math.MaxInt64-headerLength3 {
		return 0, fmt.Errorf("its QCOW2 header is garbled: a disk of %d bytes", size)
	}
	return int64(size), nil
}

// checkVersion makes sure that the header is there, and is one that we understand.
func checkVersion(start []byte) error {
	if len(start) < headerLength2 || string(start[:len(magicQCOW2)]) != magicQCOW2 {
		return errors.New("its QCOW2 header is not complete")
	}
	switch version := binary.BigEndian.Uint32(start[atVersion:]); version {
	case 2:
		return nil
	case 3:
		return checkFeatures(start)
	default:
		return fmt.Errorf("it is QCOW2 of version %d; versions 2 and 3 are supported", version)
	}
}

// checkFeatures looks at what only version 3 has.
func checkFeatures(start []byte) error {
	if len(start) < headerLength3 || binary.BigEndian.Uint32(start[atHeaderLength:]) < headerLength3 {
		return errors.New("its QCOW2 header is not complete")
	}
	features := binary.BigEndian.Uint64(start[atIncompatible:])
	switch {
	case features&featureDataFile != 0:
		return errors.New("it keeps its data in another file, and only images that are complete are taken")
	case features&featureCorrupt != 0:
		return errors.New("it is marked as corrupt")
	case features&^featuresWeCanHandle != 0:
		return fmt.Errorf("it has QCOW2 features that are not supported (%#x)", features&^featuresWeCanHandle)
	}
	return nil
}
