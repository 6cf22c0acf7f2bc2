// Package image downloads, verifies and unpacks disk images and boot files.
//
// [WriteDisk] creates the root disk of a new VM from an image. [Fetch] downloads a kernel or an initial RAM disk.
// Both write to a temporary file next to the target, and rename it when its content is complete, verified and on
// stable storage. The next attempt overwrites a file that remains after a crash.
//
// Content is not trusted. Its format is detected from the first bytes, not from the URL. An image is rejected if
// it is not a disk, refers to other files, is larger than the disk, or needs a decoder that uses a lot of memory.
// The checksum applies to the bytes behind the URL. URLs are not trusted either: see [Access].
//
// Temporary failures are retried for a limited time. A retry resumes the download if the server supports that.
// Other failures are returned as an [*Error] with a [Kind].
package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Source describes the content to download.
type Source struct {
	// URL has the scheme http, https or file. Required.
	URL string
	// Checksum is "sha256:" or "sha512:" followed by the hash of the bytes behind the URL, in lower-case hexadecimal
	// digits. If empty, the content is not verified.
	Checksum string
	// Format is the format of these bytes. Fetch ignores it. If zero, the format is detected: content that begins
	// like gzip, xz or zstd is decompressed, and the result is QCOW2 if it begins like QCOW2, and raw otherwise.
	// Archives, texts and other formats of images are rejected. Any other value is the format of the bytes
	// themselves; only documents that servers send instead of an image are rejected.
	Format vmpb.InitialImage_Format
}

// Target is the disk to write.
type Target struct {
	// Path is the path of the file, in an existing directory. WriteDisk temporarily writes Path.partial and
	// Path.qcow2.partial; the caller must prevent concurrent use of all three files. If Path is a block device,
	// the disk is written to it. The device must not contain a disk yet: see package disk.
	Path string
	// Bytes is the size of the disk. The file is sparse. A larger image is rejected; after a smaller image, the
	// remaining bytes are zero. If 0, the disk has the size of the image. A device may be larger than the disk,
	// but not smaller.
	Bytes int64
	// Scratch is a directory for temporary files of an image that is written to a device. Required for a device.
	Scratch string
}

// device reports whether the disk is a block device.
func (t Target) device() bool { return disk.Disk{Path: t.Path}.IsDevice() }

// temporary returns the path of a QCOW2 file during its conversion. WriteDisk appends ".partial" to it.
func (t Target) temporary() string {
	if t.device() {
		return filepath.Join(t.Scratch, filepath.Base(t.Path)+".qcow2")
	}
	return t.Path + ".qcow2"
}

// Options are the options of WriteDisk and Fetch. The zero value is valid.
type Options struct {
	// Access lists what URLs may access on this host. The zero value allows nothing.
	Access Access
	// Client sends the requests; it does not respect Access.Servers. If nil, a client that respects it is used.
	// CheckRedirect of the client is ignored.
	Client *http.Client
	// RetryTimeout is how long to retry without progress. 0 means 30 seconds; a negative value disables retries.
	RetryTimeout time.Duration
	// Progress is called with the number of bytes read from the URL and the total number, which is 0 if unknown.
	// It is called often. The number of bytes decreases when an attempt starts over.
	Progress func(done, total int64)
	// OnRetry is called with each failure that is retried.
	OnRetry func(error)
	// Check inspects the downloaded content, or the disk in an image, before the file is renamed to its final
	// name. If it returns a problem, the content is Rejected. If Check is nil, nothing is checked.
	Check func(content io.ReaderAt) (problem string)
}

// Kind classifies errors. It is itself an error, for use with errors.Is.
type Kind string

const (
	// Invalid means that the Source is invalid. Nothing was attempted.
	Invalid Kind = "Invalid"
	// Unavailable means that the content cannot be downloaded now.
	Unavailable Kind = "Unavailable"
	// Rejected means that the content cannot be used because of its checksum, format, size, or the result of
	// Check.
	Rejected Kind = "Rejected"
	// NoSpace means that the storage is full.
	NoSpace Kind = "NoSpace"
)

// Error implements error.
func (k Kind) Error() string { return string(k) }

// Error explains why a file was not written. It wraps its Kind and its Cause.
type Error struct {
	// Kind classifies the error.
	Kind Kind
	// Subject is "image" or "file", followed by the URL without parts that may be secret.
	Subject string
	// Problem is a message for users.
	Problem string
	// Cause is the underlying error, or nil.
	Cause error

	retry   bool // whether another attempt may succeed
	restart bool // whether that attempt must start from the beginning
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

// ErrNoQemuImg means that qemu-img, which QCOW2 images require, is not installed.
var ErrNoQemuImg = errors.New("qemu-img is not installed; QCOW2 images require it")

// WriteDisk creates a disk from an image. It never replaces a disk: it returns fs.ErrExist if there is a file at
// target.Path, or a device with data.
//
// Other errors: *Error, ErrNoQemuImg, disk.ErrTooSmall, the context's cause, and file system errors other than
// lack of space. After an error, the file does not exist, or the device has no complete disk.
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
	// Unlike the partial file of the disk, this one would otherwise remain if the image is now raw.
	if err := os.Remove(target.temporary() + ".partial"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return j.try(ctx, func(ctx context.Context) error { return j.writeDisk(ctx, target) })
}

// exists reports whether there already is a disk.
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

// Fetch writes the bytes behind the URL to the file at path, and replaces an existing file. The directory must
// exist. The maximum size is 2 GiB.
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
	access   Access
	client   *http.Client
	lookup   func(ctx context.Context, network, host string) ([]netip.Addr, error)
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
	j := &job{location: where, access: options.Access, lookup: net.DefaultResolver.LookupNetIP, progress: options.Progress, onRetry: options.OnRetry, check: options.Check}
	base := options.Client
	if base == nil {
		base = j.newClient()
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

// try makes attempts, each from the beginning, until one succeeds or fails permanently.
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

// again reports a failure and waits until the next attempt is due. It returns false if there are no more attempts.
func (j *job) again(ctx context.Context, failure error) bool {
	j.onRetry(failure)
	return j.retries.wait(ctx)
}

// verify compares the hash of all bytes behind the URL with the checksum.
func (j *job) verify(hashed hash.Hash) error {
	got := checksum{algorithm: j.checksum.algorithm, sum: hashed.Sum(nil)}
	if j.checksum.set() && !bytes.Equal(got.sum, j.checksum.sum) {
		return j.rejected("its checksum is %s, expected %s", got, j.checksum)
	}
	return nil
}

// commit renames the complete file to its final name.
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

// temporary is like unavailable, but for a failure that may be retried.
func (j *job) temporary(cause error, problem string) *Error {
	e := j.unavailable(cause, problem)
	e.retry = true
	return e
}

// location is a parsed Source.
type location struct {
	url      *url.URL
	subject  string
	checksum checksum
	format   vmpb.InitialImage_Format
}

func (s Source) parse(noun string) (location, error) {
	invalid := func(subject, problem string) (location, error) {
		return location{}, &Error{Kind: Invalid, Subject: subject, Problem: problem}
	}
	parsed, err := url.Parse(s.URL)
	if err != nil {
		// The error of url.Parse contains the URL, which may contain secrets.
		return invalid(noun, "cannot parse its URL")
	}
	// The public part has no user, password, query and fragment.
	public := url.URL{Scheme: parsed.Scheme, Host: parsed.Host, Path: parsed.Path, RawPath: parsed.RawPath}
	subject := noun + " " + public.String()
	if problem := urlProblem(parsed); problem != "" {
		return invalid(subject, problem)
	}
	expected, ok := parseChecksum(s.Checksum)
	if !ok {
		return invalid(subject, `the checksum must be "sha256:" and 64, or "sha512:" and 128, lower-case hexadecimal digits`)
	}
	if _, known := vmpb.InitialImage_Format_name[int32(s.Format)]; !known {
		return invalid(subject, "this version does not support the format")
	}
	return location{url: parsed, subject: subject, checksum: expected, format: s.Format}, nil
}

func urlProblem(u *url.URL) string {
	switch u.Scheme {
	case "http", "https":
		if u.Hostname() == "" {
			return "the URL does not name a host"
		}
	case "file":
		if u.Host != "" && u.Host != "localhost" {
			return "a file URL must not name another host"
		}
		if !strings.HasPrefix(u.Path, "/") || strings.ContainsRune(u.Path, 0) {
			return "a file URL must have an absolute path"
		}
	default:
		return "the scheme of the URL must be http, https or file"
	}
	return ""
}
