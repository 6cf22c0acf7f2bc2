// Package archives provides the control plane and the guests that belong to a released program. A program that was
// built in a checkout has none: there, make builds them.
package archives

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/millwright-dev/millwright/internal/local/directory"
)

// Names of archives.
const (
	ControlPlane = "controlplane"
	Guest        = "guest"
	GuestFull    = "guest-full"
)

// DefaultURL is the directory that contains a directory for each release.
const DefaultURL = "https://github.com/millwright-dev/millwright/releases/download"

// maxSize is the maximum size of an archive, and of its content.
const maxSize = 4 << 30

// Set is the archives of a release. The zero value is that of a program without a release.
type Set struct {
	// Version is the version of the release, such as v0.1.0.
	Version string
	// Sums has the SHA-256 checksum of each archive, in hexadecimal, by its name.
	Sums map[string]string
	// URL is the directory from which archives are downloaded: that of all releases, or of a mirror. The default
	// is DefaultURL.
	URL string
	// Directories are those in which an archive may already be.
	Directories []string
}

// ParseSums parses the checksums that the linker sets, such as "controlplane=HEX,guest=HEX".
func ParseSums(list string) (map[string]string, error) {
	sums := map[string]string{}
	for entry := range strings.SplitSeq(list, ",") {
		if entry == "" {
			continue
		}
		name, sum, _ := strings.Cut(entry, "=")
		if raw, err := hex.DecodeString(sum); name == "" || err != nil || len(raw) != sha256.Size {
			return nil, fmt.Errorf("invalid checksum %q of an archive; expected NAME=SHA256", entry)
		}
		sums[name] = sum
	}
	return sums, nil
}

// Has reports whether the release has an archive of that name.
func (s Set) Has(name string) bool { return s.Sums[name] != "" }

// File returns the file name of an archive.
func (s Set) File(name string) string {
	return fmt.Sprintf("millwright-%s_%s_linux_amd64.tar.gz", name, strings.TrimPrefix(s.Version, "v"))
}

// Directory returns a directory below cache with the content of an archive. If it does not exist, the archive is taken
// from one of Directories, or downloaded, and its checksum is compared. Progress is written to out.
func (s Set) Directory(ctx context.Context, name, cache string, out io.Writer) (string, error) {
	if !s.Has(name) {
		return "", fmt.Errorf("release %s has no archive %s", s.Version, name)
	}
	parent := filepath.Join(cache, name)
	// Another prefix than that of make's results, which remove earlier ones.
	dir := filepath.Join(parent, "release-"+s.Sums[name][:16])
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", fmt.Errorf("cannot create the cache: %w", err)
	}
	lock, err := directory.LockWithRetry(dir + ".lock")
	if err != nil {
		return "", fmt.Errorf("cannot wait for another process that unpacks %s: %w", s.File(name), err)
	}
	defer lock.Close()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	archive, err := s.fetch(ctx, name, parent, out)
	if err != nil {
		return "", err
	}
	defer archive.Close()
	temporary, err := os.MkdirTemp(parent, ".unpack-")
	if err != nil {
		return "", fmt.Errorf("cannot create the cache: %w", err)
	}
	defer func() { _ = os.RemoveAll(temporary) }()
	if err := unpack(archive, temporary); err != nil {
		return "", fmt.Errorf("cannot unpack %s: %w", s.File(name), err)
	}
	// One step, so that an incomplete directory is never used.
	if err := errors.Join(os.Chmod(temporary, 0o755), os.Rename(temporary, dir)); err != nil {
		return "", fmt.Errorf("cannot unpack %s: %w", s.File(name), err)
	}
	return dir, nil
}

// fetch returns the archive with the right checksum, from its beginning.
func (s Set) fetch(ctx context.Context, name, scratch string, out io.Writer) (*os.File, error) {
	for _, dir := range s.Directories {
		file, err := os.Open(filepath.Join(dir, s.File(name)))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read the archive: %w", err)
		}
		if err := s.verify(name, file); err != nil {
			_ = file.Close()
			return nil, fmt.Errorf("%s: %w; replace it, or remove it to download it", file.Name(), err)
		}
		fmt.Fprintf(out, "Unpacking %s ...\n", file.Name())
		return file, nil
	}
	return s.download(ctx, name, scratch, out)
}

// download writes the archive to a file that has no name, and so does not remain.
func (s Set) download(ctx context.Context, name, scratch string, out io.Writer) (*os.File, error) {
	url := strings.TrimSuffix(cmp.Or(s.URL, DefaultURL), "/") + "/" + s.Version + "/" + s.File(name)
	fmt.Fprintf(out, "Downloading %s ...\n", url)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot download %s: %w", url, err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%w; set --download-url to a mirror, or put the file into the directory of this program", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("cannot download %s: the server responded %s; set --download-url to a mirror, or put the file into the directory of this program", url, response.Status)
	}
	file, err := os.CreateTemp(scratch, ".download-")
	if err != nil {
		return nil, fmt.Errorf("cannot download %s: %w", url, err)
	}
	err = os.Remove(file.Name())
	if err == nil {
		_, err = io.Copy(file, io.LimitReader(response.Body, maxSize))
	}
	if err == nil {
		err = s.verify(name, file)
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("cannot download %s: %w", url, err)
	}
	return file, nil
}

// verify compares the checksum of a whole file, and returns to its beginning.
func (s Set) verify(name string, file io.ReadSeeker) error {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return err
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != s.Sums[name] {
		return fmt.Errorf("the SHA-256 checksum is %s, but release %s has %s", got, s.Version, s.Sums[name])
	}
	_, err := file.Seek(0, io.SeekStart)
	return err
}
