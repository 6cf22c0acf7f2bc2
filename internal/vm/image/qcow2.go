package image

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/millwright-dev/millwright/internal/child"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
)

// The header of a QCOW2 file; see docs/interop/qcow2 in QEMU's source. Numbers are
// big-endian; version 2 has 72 bytes, version 3 has 104 or more and says how many.
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

// Incompatible features: a reader must know all that are set.
const (
	featureDirty        = 1 << 0 // reference counts may be wrong, which readers ignore
	featureCorrupt      = 1 << 1
	featureDataFile     = 1 << 2
	featureCompression  = 1 << 3
	featureExtendedL2   = 1 << 4
	featuresWeCanHandle = featureDirty | featureCompression | featureExtendedL2
)

// parseQCOW2 checks from the first bytes of a file whether it may be given to QEMU, and
// returns the size of the disk in it.
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

// checkFeatures checks what only version 3 has.
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

const (
	// slackQCOW2 is how much larger than its disk a QCOW2 file may be: tables, and blocks
	// that are no longer used.
	slackQCOW2 = 64 << 20
	// killDelay is how long to wait for the output of a killed qemu-img.
	killDelay = 5 * time.Second
)

// fillFromQCOW2 downloads the file as it is, and has qemu-img write the disk in it.
func (j *job) fillFromQCOW2(ctx context.Context, to *disk.Partial, target Target, decoded *decoded, from *content) error {
	start, _ := decoded.Peek(headerLength3) // a short one is refused
	if err := from.failed(); err != nil {
		return err
	}
	size, err := parseQCOW2(start)
	if err != nil {
		return j.rejected("%v", err)
	}
	if target.Bytes > 0 && size > target.Bytes {
		return j.tooLarge(size, target.Bytes)
	}
	program, err := exec.LookPath("qemu-img")
	if err != nil {
		return errors.Join(ErrNoQemuImg, err)
	}
	file, err := disk.CreatePartial(target.Path+".qcow2", 0o600)
	if err != nil {
		return j.storage(err)
	}
	defer file.Discard()
	length, err := j.writeSparse(file.File, decoded, from, maxQCOW2(size))
	if err != nil {
		return err
	}
	if err := errors.Join(file.Truncate(length), to.Truncate(diskSize(target, size))); err != nil {
		return j.storage(err)
	}
	if err := j.convert(ctx, program, file.Name(), to.Name()); err != nil {
		return err
	}
	// Without the page cache whole blocks are written, so the file may have grown.
	if err := to.Truncate(diskSize(target, size)); err != nil {
		return j.storage(err)
	}
	return nil
}

// maxQCOW2 returns the maximum size of a file that holds a disk of that size.
func maxQCOW2(size int64) int64 {
	if size > math.MaxInt64/2 {
		return math.MaxInt64
	}
	return size + size/8 + slackQCOW2
}

// noSpaceMessages are the C library's messages, all that qemu-img reports of these errors.
var noSpaceMessages = map[string]syscall.Errno{
	"No space left on device": syscall.ENOSPC,
	"Disk quota exceeded":     syscall.EDQUOT,
	"File too large":          syscall.EFBIG,
}

// convert writes the disk in the QCOW2 file to the raw one, which is all zero.
func (j *job) convert(ctx context.Context, program, qcow2, raw string) error {
	source, err := filepath.Abs(qcow2) // a name with a colon would be a protocol
	if err != nil {
		return err
	}
	target, err := filepath.Abs(raw)
	if err != nil {
		return err
	}
	var stderr bytes.Buffer
	command := exec.CommandContext(ctx, program, "convert", "-f", "qcow2", "-O", "raw",
		"-t", cacheMode(target), "-n", "--target-is-zero", source, target)
	command.Env = []string{"LC_ALL=C"} // its messages are compared
	command.WaitDelay = killDelay
	command.Stderr = &stderr
	converter, err := child.Start(command, syscall.SIGKILL)
	if err != nil {
		return fmt.Errorf("%s: qemu-img: %w", j.subject, err)
	}
	<-converter.Ended()
	status, message := converter.Status(), strings.TrimSpace(stderr.String())
	if status.Exited() && status.ExitStatus() == 0 {
		return nil
	}
	for text, reason := range noSpaceMessages {
		if strings.Contains(message, text) {
			return j.storage(&fs.PathError{Op: "write", Path: raw, Err: reason})
		}
	}
	if status.Exited() {
		return j.rejected("qemu-img cannot convert it: %.500s", message)
	}
	return fmt.Errorf("%s: qemu-img: %s", j.subject, converter)
}

// cacheMode returns "none" if the file system supports it: an image would fill the page
// cache, and take several times as long.
func cacheMode(path string) string {
	file, err := os.OpenFile(path, os.O_WRONLY|syscall.O_DIRECT, 0)
	if err != nil {
		return "writeback"
	}
	_ = file.Close()
	return "none"
}
