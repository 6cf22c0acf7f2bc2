package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	defaultQemuImg = "qemu-img"
	suffixQCOW2    = ".qcow2"
	// slackQCOW2 is how much larger than its disk a QCOW2 file may be: tables, and
	// blocks that are no longer used.
	slackQCOW2 = 64 << 20
	// killDelay is how long the output of a killed qemu-img is waited for.
	killDelay = 5 * time.Second
)

// fillFromQCOW2 brings the file here as it is, and has qemu-img write the disk in it.
func (j *job) fillFromQCOW2(
	ctx context.Context, disk *partial, target Target, decoded *decoded, from *content,
) error {
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
	program, err := j.findQemuImg()
	if err != nil {
		return err
	}
	file, err := createPartial(target.Path+suffixQCOW2, 0o600)
	if err != nil {
		return j.storage(err)
	}
	defer file.discard()
	length, err := j.writeSparse(file.File, decoded, from, maxQCOW2(size))
	if err != nil {
		return err
	}
	if err := errors.Join(file.Truncate(length), disk.Truncate(diskSize(target, size))); err != nil {
		return j.storage(err)
	}
	if err := j.convert(ctx, program, file.Name(), disk.Name()); err != nil {
		return err
	}
	// Around the page cache whole blocks are written, so the file may have grown.
	if err := disk.Truncate(diskSize(target, size)); err != nil {
		return j.storage(err)
	}
	return nil
}

// maxQCOW2 is how large a file may be that holds a disk of that size.
func maxQCOW2(size int64) int64 {
	if size > math.MaxInt64/2 {
		return math.MaxInt64
	}
	return size + size/8 + slackQCOW2
}

// ErrNoQemuImg says that qemu-img is not installed, without which a QCOW2 image cannot
// be used.
var ErrNoQemuImg = errors.New("qemu-img is not installed, which QCOW2 images need")

func (j *job) findQemuImg() (string, error) {
	name := j.qemuImg
	if name == "" {
		name = defaultQemuImg
	}
	program, err := exec.LookPath(name)
	if err != nil {
		return "", errors.Join(ErrNoQemuImg, err)
	}
	return program, nil
}

// noRoomWords are noRoom in the words of the C library, all that qemu-img leaves of them.
var noRoomWords = map[string]syscall.Errno{
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
	command := exec.CommandContext(ctx, program, "convert", "-f", "qcow2", "-O", "raw",
		"-t", cacheMode(target), "-n", "--target-is-zero", source, target)
	command.Env = []string{"LC_ALL=C"} // its words are looked at
	command.WaitDelay = killDelay
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	words, err := runLocked(command)
	if err == nil {
		return nil
	}
	for text, reason := range noRoomWords {
		if strings.Contains(words, text) {
			return j.storage(reason)
		}
	}
	var ended *exec.ExitError
	if errors.As(err, &ended) && ended.Exited() {
		return j.rejected("qemu-img cannot convert it: %.500s", words)
	}
	return fmt.Errorf("%s: qemu-img: %w", j.subject, err)
}

// runLocked runs a program that is to die with us. The kernel ends it when the thread
// that started it ends, so the thread is kept. It returns what the program complained of.
func runLocked(command *exec.Cmd) (words string, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var complaint bytes.Buffer
	command.Stderr = &complaint
	err = command.Run()
	return strings.TrimSpace(complaint.String()), err
}

// cacheMode is "none" where the file system can go around the page cache: an image
// would fill it with what nobody reads soon, and takes several times as long.
func cacheMode(path string) string {
	file, err := os.OpenFile(path, os.O_WRONLY|syscall.O_DIRECT, 0)
	if err != nil {
		return "writeback"
	}
	_ = file.Close()
	return "none"
}
