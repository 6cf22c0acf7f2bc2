package image

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
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

// The header of a QCOW2 file; see docs/interop/qcow2 in QEMU's source. Numbers are big-endian. The header of
// version 2 has 72 bytes; that of version 3 has at least 104 and contains its own length.
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

// Incompatible features. A reader must support all features that are set.
const (
	featureDirty        = 1 << 0 // reference counts may be wrong; readers can ignore this
	featureCorrupt      = 1 << 1
	featureDataFile     = 1 << 2
	featureCompression  = 1 << 3
	featureExtendedL2   = 1 << 4
	featuresWeCanHandle = featureDirty | featureCompression | featureExtendedL2
)

// parseQCOW2 uses the first bytes of a file to check whether QEMU may be given the file. It returns the size of
// the disk in it.
func parseQCOW2(start []byte) (virtualSize int64, err error) {
	if err := checkVersion(start); err != nil {
		return 0, err
	}
	number := binary.BigEndian
	if number.Uint64(start[atBackingFile:]) != 0 {
		return 0, errors.New("it has a backing file; only self-contained images are supported")
	}
	if number.Uint32(start[atCrypt:]) != 0 {
		return 0, errors.New("it is encrypted")
	}
	if bits := number.Uint32(start[atClusterBits:]); bits < 9 || bits > 21 {
		return 0, fmt.Errorf("its QCOW2 header is invalid: clusters of 2^%d bytes", bits)
	}
	size := number.Uint64(start[atVirtualSize:])
	if size == 0 || size > math.MaxInt64-headerLength3 {
		return 0, fmt.Errorf("its QCOW2 header is invalid: a disk of %d bytes", size)
	}
	return int64(size), nil
}

func checkVersion(start []byte) error {
	if len(start) < headerLength2 || string(start[:len(magicQCOW2)]) != magicQCOW2 {
		return errors.New("its QCOW2 header is incomplete")
	}
	switch version := binary.BigEndian.Uint32(start[atVersion:]); version {
	case 2:
		return nil
	case 3:
		return checkFeatures(start)
	default:
		return fmt.Errorf("it has QCOW2 version %d; versions 2 and 3 are supported", version)
	}
}

// checkFeatures checks the fields that exist only in version 3.
func checkFeatures(start []byte) error {
	if len(start) < headerLength3 || binary.BigEndian.Uint32(start[atHeaderLength:]) < headerLength3 {
		return errors.New("its QCOW2 header is incomplete")
	}
	features := binary.BigEndian.Uint64(start[atIncompatible:])
	switch {
	case features&featureDataFile != 0:
		return errors.New("its data is in another file; only self-contained images are supported")
	case features&featureCorrupt != 0:
		return errors.New("it is marked as corrupt")
	case features&^featuresWeCanHandle != 0:
		return fmt.Errorf("it uses unsupported QCOW2 features (%#x)", features&^featuresWeCanHandle)
	}
	return nil
}

const (
	// slackQCOW2 is how much larger a QCOW2 file may be than its disk, in bytes: it contains tables and unused
	// blocks.
	slackQCOW2 = 64 << 20
	// killDelay is how long to wait for the output of qemu-img after it was killed.
	killDelay = 5 * time.Second
)

// fillFromQCOW2 downloads the file unchanged and uses qemu-img to write the disk that it contains.
func (j *job) fillFromQCOW2(ctx context.Context, to draft, target Target, decoded *decoded, from *content) error {
	start, _ := decoded.Peek(headerLength3) // a short file is rejected
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
	file, err := disk.CreatePartial(target.temporary(), 0o600)
	if err != nil {
		return j.storage(err)
	}
	defer file.Discard()
	length, err := j.writeSparse(file, decoded, from, maxQCOW2(size))
	if err != nil {
		return err
	}
	if err := errors.Join(file.Truncate(length), to.Truncate(diskSize(target, size))); err != nil {
		return j.storage(err)
	}
	converter := converter{j, program, file.Name(), size}
	if err := converter.write(ctx, to); err != nil {
		return err
	}
	// Without the page cache, qemu-img writes whole blocks, so the file may have grown.
	if err := to.Truncate(diskSize(target, size)); err != nil {
		return j.storage(err)
	}
	return nil
}

// maxQCOW2 returns the maximum size of a file that contains a disk of the given size.
func maxQCOW2(size int64) int64 {
	if size > math.MaxInt64/2 {
		return math.MaxInt64
	}
	return size + size/8 + slackQCOW2
}

// noSpaceMessages maps messages of the C library to errors. qemu-img does not report these errors in any other
// way.
var noSpaceMessages = map[string]syscall.Errno{
	"No space left on device": syscall.ENOSPC,
	"Disk quota exceeded":     syscall.EDQUOT,
	"File too large":          syscall.EFBIG,
}

// converter uses qemu-img to convert a QCOW2 file.
type converter struct {
	*job
	program string
	path    string
	size    int64 // size of the disk in the file
}

// write writes the disk in the file to a file that contains only zeros.
func (c converter) write(ctx context.Context, to draft) error {
	source, err := filepath.Abs(c.path) // a name with a colon would be parsed as a protocol
	if err != nil {
		return err
	}
	target, err := filepath.Abs(to.Name())
	if err != nil {
		return err
	}
	if _, isDevice := to.(*disk.Draft); isDevice {
		return c.writeDevice(ctx, source, target, to)
	}
	return c.run(ctx, target, "-f", "qcow2", source, target)
}

// writeDevice converts the file to the device. It writes the parts that the draft must hold back until the end
// through the draft, because qemu-img would write them to the device immediately.
func (c converter) writeDevice(ctx context.Context, source, target string, to draft) error {
	from := node{"driver": "qcow2", "file": node{"driver": "file", "filename": source}}
	size := c.size / sectorSize * sectorSize // rounded down, as QEMU does
	head := min(size, disk.HeadBytes)
	part, err := disk.CreatePartial(source+".head", 0o600)
	if err != nil {
		return c.storage(err)
	}
	defer part.Discard()
	content := make([]byte, head)
	if err := part.Truncate(head); err != nil {
		return c.storage(err)
	}
	if err := c.run(ctx, part.Name(), from.part(0, head), node{"driver": "file", "filename": part.Name()}.part(0, head)); err != nil {
		return err
	}
	if _, err := part.ReadAt(content, 0); err != nil {
		return c.storage(err)
	}
	if _, err := to.WriteAt(content, 0); err != nil {
		return c.storage(err)
	}
	if size == head {
		return nil
	}
	return c.run(ctx, target, from.part(head, size-head), node{"driver": "host_device", "filename": target}.part(head, size-head))
}

// sectorSize is the unit of QEMU's sizes, in bytes.
const sectorSize = 512

// node describes to qemu-img where an image is. In this form, characters in file names have no special meaning.
type node map[string]any

// part is a region of an image, as raw data.
func (n node) part(offset, length int64) string {
	text, _ := json.Marshal(node{"driver": "raw", "offset": offset, "size": length, "file": n}) // cannot fail: all values are strings, numbers or nodes
	return "json:" + string(text)
}

// run converts images to a file or device that contains only zeros. The images are the last arguments.
func (c converter) run(ctx context.Context, raw string, images ...string) error {
	var stderr bytes.Buffer
	arguments := []string{"convert", "-O", "raw", "-t", cacheMode(raw), "-n", "--target-is-zero"}
	command := exec.CommandContext(ctx, c.program, append(arguments, images...)...)
	command.Env = []string{"LC_ALL=C"} // its messages are matched below
	command.WaitDelay = killDelay
	command.Stderr = &stderr
	process, err := child.Start(command, syscall.SIGKILL)
	if err != nil {
		return fmt.Errorf("%s: qemu-img: %w", c.subject, err)
	}
	<-process.Ended()
	status, message := process.Status(), strings.TrimSpace(stderr.String())
	if status.Exited() && status.ExitStatus() == 0 {
		return nil
	}
	for text, reason := range noSpaceMessages {
		if strings.Contains(message, text) {
			return c.storage(&fs.PathError{Op: "write", Path: raw, Err: reason})
		}
	}
	if status.Exited() {
		return c.rejected("qemu-img cannot convert it: %.500s", message)
	}
	return fmt.Errorf("%s: qemu-img: %s", c.subject, process)
}

// cacheMode returns "none" if the file system supports it. With the page cache, an image would fill the cache and
// the conversion would take several times as long.
func cacheMode(path string) string {
	file, err := os.OpenFile(path, os.O_WRONLY|syscall.O_DIRECT, 0)
	if err != nil {
		return "writeback"
	}
	_ = file.Close()
	return "none"
}
