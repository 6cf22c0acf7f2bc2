package image

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strings"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Source is where content comes from, and what is known of it.
type Source struct {
	// URL is of the scheme http, https or file. Required. The path of a file URL is
	// taken as it is.
	URL string
	// Checksum is "sha256:" and the 64 lower-case hexadecimal digits of the hash of
	// the bytes behind the URL. Empty: they are not checked.
	Checksum string
	// Format is how a disk is encoded in the bytes; Fetch ignores it. Not said: an
	// image that begins like one of the compressed formats gzip, xz or zstd is
	// decompressed, and what comes then is QCOW2 if it begins like it, otherwise raw.
	// A named format is that of the bytes behind the URL themselves.
	Format vmpb.InitialImage_Format
}

// Validate looks at the source without fetching anything. The error is Invalid.
func (s Source) Validate() error {
	_, err := s.parse("image")
	return err
}

// location is a Source that makes sense.
type location struct {
	url      *url.URL
	subject  string
	checksum []byte // nil: not checked
	format   vmpb.InitialImage_Format
}

func (s Source) parse(noun string) (location, error) {
	invalid := func(subject, problem string) (location, error) {
		return location{}, &Error{Kind: Invalid, Subject: subject, Problem: problem}
	}
	parsed, err := url.Parse(s.URL)
	if err != nil {
		// The parser's error repeats the URL, and with it what may be secret.
		return invalid(noun, "its URL cannot be parsed")
	}
	subject := noun + " " + shown(parsed)
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

// urlProblem is what is wrong with a URL, "" if nothing is.
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

// shown is a URL without what may be secret: user, password, query, fragment.
func shown(u *url.URL) string {
	public := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	return public.String()
}

// parseChecksum returns the hash; nil for an empty text.
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
