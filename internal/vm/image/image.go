// Package image downloads, verifies and unpacks disk images and boot files.
//
// [WriteDisk] creates the root disk of a new VM from an image; [Fetch] downloads a kernel or an initial RAM disk.
// Both write another file next to the target, and rename it when its content is complete, verified and on stable
// storage. The next attempt overwrites what remains after a crash.
//
// Content is not trusted. Its format is detected from the first bytes, not from the URL; an image is rejected if it
// refers to other files, is larger than the disk, or needs a decoder with much memory; the checksum applies to the
// bytes behind the URL. URLs are not trusted either: see [Access].
//
// Temporary failures are retried for a while, continuing where the last attempt ended if the server supports that.
// Other failures are an [*Error] with a [Kind].
package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Source is where content comes from.
type Source struct {
	// URL with the scheme http, https or file. Required.
	URL string
	// Checksum is "sha256:" and the 64 lower-case hexadecimal digits of the hash of the bytes behind the URL. If empty,
	// the content is not verified.
	Checksum string
	// Format is the format of these bytes; Fetch ignores it. If zero, content that begins like gzip, xz or zstd is
	// decompressed, and is then QCOW2 if it begins like that, and raw otherwise. Any other value is the format of the
	// bytes themselves.
	Format vmpb.InitialImage_Format
}

// Target is the disk to write.
type Target struct {
	// Path is the path of the file, in an existing directory. Path.partial and Path.qcow2.partial are written
	// temporarily. The caller must prevent concurrent use of the three. If there is a block device at the path, the disk
	// is written to it. It must not have a disk yet: see package disk.
	Path string
	// Bytes is the size of the disk; the file is sparse. A larger image is rejected; the rest after a smaller one is
	// zero. If 0, the disk has the size of the image. A device may be larger, but not smaller.
	Bytes int64
	// Scratch is a directory for temporary files of an image for a device. Required for a device.
	Scratch string
}

// device reports whether the disk is a block device.
func (t Target) device() bool { return disk.Disk{Path: t.Path}.IsDevice() }

// temporary returns where a QCOW2 file is kept during the conversion; its name ends in ".partial".
func (t Target) temporary() string {
	if t.device() {
		return filepath.Join(t.Scratch, filepath.Base(t.Path)+".qcow2")
	}
	return t.Path + ".qcow2"
}

// Options of WriteDisk and Fetch. The zero value is valid.
type Options struct {
	// Access is what URLs may access on this host. The zero value allows nothing.
	Access Access
	// Client makes the requests, and ignores Access.Servers. The default is a client that respects it. Its
	// CheckRedirect is not used.
	Client *http.Client
	// RetryTimeout is how long to retry without progress. 0 means 30 seconds; a negative value disables retries.
	RetryTimeout time.Duration
	// Progress is called with the number of bytes read from the URL and the total number, which is 0 if unknown. It
	// is called often; done decreases when an attempt starts over.
	Progress func(done, total int64)
	// OnRetry is called with each failure that is retried.
	OnRetry func(error)
	// Check inspects the downloaded content, or the disk in an image, before the file gets its name. If it returns a
	// problem, the content is Rejected. If nil, nothing is checked.
	Check func(content io.ReaderAt) (problem string)
}

// Kind classifies errors. It is an error, for use with errors.Is.
type Kind string

const (
	// Invalid means that the Source is invalid. Nothing was attempted.
	Invalid Kind = "Invalid"
	// Unavailable means that the content cannot be downloaded now.
	Unavailable Kind = "Unavailable"
	// Rejected means that the content cannot be used, because of its checksum, format or size.
	Rejected Kind = "Rejected"
	// NoSpace means that the storage is full.
	NoSpace Kind = "NoSpace"
)

// Error implements error.
func (k Kind) Error() string { return string(k) }

// Error is why a file was not written. It wraps its Kind and its Cause.
type Error struct {
	// Kind classifies the error.
	Kind Kind
	// Subject is "image" or "file", and the URL without parts that may be secret.
	Subject string
	// Problem is a message for users.
	Problem string
	// Cause is the underlying error, or nil.
	Cause error

	retry   bool // another attempt may succeed
	restart bool // if so, from the start
}

// Error implements error.
func (e *Error) Error() string { return e.Subject + ": " + e.Problem }

// Unwrap returns the Kind and the Cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

// ErrNoQemuImg means that qemu-img is not installed, which QCOW2 images require.
var ErrNoQemuImg = errors.New("qemu-img is not installed; QCOW2 images require it")

// WriteDisk creates a disk from an image. It never replaces a disk: if there is a file at target.Path, or a device
// with data, the error is fs.ErrExist.
//
// Other errors: *Error, ErrNoQemuImg, disk.ErrTooSmall, the context's cause, and file system errors other than lack
// of space. After an error there is no file of that name, and the device has no complete disk.
func WriteDisk(ctx context.Context, source Source, target Target, options Options) error {
	j, err := newJob("image", source, options)
	if err != nil {
		return err
	}
	exists, err := target.exists()
	if err != nil {
		return err
	}
	if exists {
		return fmt.Errorf("%s: the disk already exists: %w", j.subject, &fs.PathError{
			Op: "create", Path: target.Path, Err: fs.ErrExist,
		})
	}
	// Unlike the disk's, this temporary file would otherwise stay if the image is now raw.
	if err := os.Remove(target.temporary() + ".partial"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return j.try(ctx, func(ctx context.Context) error { return j.writeDisk(ctx, target) })
}

// exists reports whether there is a disk.
func (t Target) exists() (bool, error) {
	if t.device() {
		content, err := disk.Disk{Path: t.Path}.Content()
		return content == disk.Data, err
	}
	_, err := os.Lstat(t.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Fetch writes the bytes behind the URL to the file at path, and replaces an existing one. The directory must exist.
// The maximum size is 2 GiB.
//
// Errors: *Error, the context's cause, and file system errors other than lack of space.
func Fetch(ctx context.Context, source Source, path string, options Options) error {
	j, err := newJob("file", source, options)
	if err != nil {
		return err
	}
	return j.try(ctx, func(ctx context.Context) error { return j.fetch(ctx, path) })
}

// job is one call of WriteDisk or Fetch.
type job struct {
	location
	files    string // Access.Files
	client   *http.Client
	progress func(done, total int64)
	onRetry  func(error)
	check    func(io.ReaderAt) string
	retries  retries
}

func newJob(noun string, source Source, options Options) (*job, error) {
	where, err := source.parse(noun)
	if err != nil {
		return nil, err
	}
	j := &job{location: where, files: options.Access.Files, progress: options.Progress, onRetry: options.OnRetry, check: options.Check}
	base := options.Client
	if base == nil {
		base = j.newClient(options.Access)
	}
	j.client = j.withRedirects(base)
	if j.progress == nil {
		j.progress = func(int64, int64) {}
	}
	if j.onRetry == nil {
		j.onRetry = func(error) {}
	}
	if j.check == nil {
		j.check = func(io.ReaderAt) string { return "" }
	}
	j.retries.limit = options.RetryTimeout
	if options.RetryTimeout == 0 {
		j.retries.limit = defaultRetryTimeout
	}
	return j, nil
}

// try makes attempts, each from the start, until one succeeds or fails permanently.
func (j *job) try(ctx context.Context, attempt func(context.Context) error) error {
	for {
		err := attempt(ctx)
		var failure *Error
		if ctx.Err() == nil && errors.As(err, &failure) && failure.retry && j.again(ctx, err) {
			continue
		}
		if err != nil && ctx.Err() != nil {
			return fmt.Errorf("%s: %w", j.subject, context.Cause(ctx))
		}
		return err
	}
}

// again reports a failure, and waits for the next attempt. It returns false if there is none.
func (j *job) again(ctx context.Context, failure error) bool {
	j.onRetry(failure)
	return j.retries.wait(ctx)
}

// verify compares the hash of all bytes behind the URL with the checksum.
func (j *job) verify(hashed hash.Hash) error {
	if got := hashed.Sum(nil); j.checksum != nil && !bytes.Equal(got, j.checksum) {
		return j.rejected("its checksum is sha256:%s, expected sha256:%s",
			hex.EncodeToString(got), hex.EncodeToString(j.checksum))
	}
	return nil
}

// commit renames the complete file.
func (j *job) commit(to draft) error {
	if problem := j.check(to); problem != "" {
		return j.rejected("%s", problem)
	}
	if err := to.Commit(); err != nil {
		return j.storage(err)
	}
	return nil
}

// storage returns the error for a failed write to the file.
func (j *job) storage(err error) error {
	for _, reason := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG} {
		if errors.Is(err, reason) {
			return &Error{Kind: NoSpace, Subject: j.subject, Problem: "no space: " + err.Error(), Cause: err}
		}
	}
	return fmt.Errorf("%s: %w", j.subject, err)
}

func (j *job) rejected(format string, arguments ...any) error {
	return &Error{Kind: Rejected, Subject: j.subject, Problem: fmt.Sprintf(format, arguments...)}
}

func (j *job) unavailable(cause error, problem string) *Error {
	return &Error{Kind: Unavailable, Subject: j.subject, Problem: problem, Cause: cause}
}

// temporary is like unavailable, but the failure may be retried.
func (j *job) temporary(cause error, problem string) *Error {
	e := j.unavailable(cause, problem)
	e.retry = true
	return e
}

// location is a parsed Source.
type location struct {
	url      *url.URL
	subject  string
	checksum []byte // nil if not verified
	format   vmpb.InitialImage_Format
}

func (s Source) parse(noun string) (location, error) {
	invalid := func(subject, problem string) (location, error) {
		return location{}, &Error{Kind: Invalid, Subject: subject, Problem: problem}
	}
	parsed, err := url.Parse(s.URL)
	if err != nil {
		// The parser's error contains the URL, which may contain secrets.
		return invalid(noun, "cannot parse its URL")
	}
	// Without user, password, query and fragment.
	public := url.URL{Scheme: parsed.Scheme, Host: parsed.Host, Path: parsed.Path, RawPath: parsed.RawPath}
	subject := noun + " " + public.String()
	if problem := urlProblem(parsed); problem != "" {
		return invalid(subject, problem)
	}
	sum, ok := parseChecksum(s.Checksum)
	if !ok {
		return invalid(subject, `the checksum must be "sha256:" and 64 lower-case hexadecimal digits`)
	}
	if _, known := vmpb.InitialImage_Format_name[int32(s.Format)]; !known {
		return invalid(subject, "the format is none that this version knows")
	}
	return location{url: parsed, subject: subject, checksum: sum, format: s.Format}, nil
}

func urlProblem(u *url.URL) string {
	switch u.Scheme {
	case "http", "https":
		if u.Hostname() == "" {
			return "the URL names no host"
		}
	case "file":
		if u.Host != "" && u.Host != "localhost" {
			return "a file URL must not name another host"
		}
		if !strings.HasPrefix(u.Path, "/") || strings.ContainsRune(u.Path, 0) {
			return "a file URL must have an absolute path"
		}
	default:
		return "the URL must begin with http, https or file"
	}
	return ""
}

// parseChecksum returns the hash, or nil for an empty text.
func parseChecksum(text string) (sum []byte, ok bool) {
	if text == "" {
		return nil, true
	}
	digits, ok := strings.CutPrefix(text, "sha256:")
	if !ok || digits != strings.ToLower(digits) {
		return nil, false
	}
	sum, err := hex.DecodeString(digits)
	return sum, err == nil && len(sum) == sha256.Size
}
