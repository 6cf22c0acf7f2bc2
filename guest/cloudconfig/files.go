package cloudconfig

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// File is a file to write.
type File struct {
	// Path is absolute and clean.
	Path string
	// User and Group are the names of the owners. If empty, root is used.
	User, Group string
	// Mode is the permissions. Defaults to 0644.
	Mode fs.FileMode
	// Content is decoded.
	Content []byte
	// Append is set if the content is appended to the file.
	Append bool
}

const (
	defaultMode = 0o644
	// largestFile is the maximum size of an uncompressed file, in bytes.
	largestFile = 64 << 20
)

// writeFile is an entry of write_files.
type writeFile struct {
	Path        string          `json:"path"`
	Owner       string          `json:"owner"`
	Permissions json.RawMessage `json:"permissions"`
	Encoding    string          `json:"encoding"`
	Content     string          `json:"content"`
	Append      bool            `json:"append"`
	Source      json.RawMessage `json:"source"`
	Deferred    bool            `json:"defer"`
}

func decodeFiles(config *Config, content json.RawMessage) error {
	if isEmpty(content) {
		return nil
	}
	var entries []json.RawMessage
	if err := json.Unmarshal(content, &entries); err != nil {
		return &Error{"write_files", "is not a list"}
	}
	var later []File
	for i, entry := range entries {
		where := fmt.Sprintf("write_files[%d]", i)
		var fields writeFile
		if err := json.Unmarshal(entry, &fields); err != nil {
			return &Error{where, "is not a mapping with fields of the right types"}
		}
		file, err := fields.decode(where)
		if err != nil {
			return err
		}
		if fields.Deferred {
			later = append(later, file)
			continue
		}
		config.Files = append(config.Files, file)
	}
	config.Files = append(config.Files, later...)
	return nil
}

func (w *writeFile) decode(where string) (file File, err error) {
	if !path.IsAbs(w.Path) || path.Clean(w.Path) == "/" || strings.ContainsRune(w.Path, 0) {
		return File{}, &Error{where + ".path", "is not an absolute path"}
	}
	if !isEmpty(w.Source) {
		return File{}, &Error{where + ".source", "the guest does not fetch files"}
	}
	file = File{Path: path.Clean(w.Path), Append: w.Append}
	if file.Mode, err = mode(w.Permissions); err != nil {
		return File{}, &Error{where + ".permissions", "are not an octal number of up to four digits"}
	}
	file.User, file.Group, _ = strings.Cut(w.Owner, ":")
	if file.Content, err = decodeContent(w.Encoding, w.Content); err != nil {
		return File{}, &Error{where + ".content", err.Error()}
	}
	return file, nil
}

// mode returns permissions from an octal number in a string, or from a number that YAML has parsed.
func mode(permissions json.RawMessage) (fs.FileMode, error) {
	if isEmpty(permissions) {
		return defaultMode, nil
	}
	text, base := string(permissions), 10
	var octal string
	if json.Unmarshal(permissions, &octal) == nil {
		text, base = strings.TrimPrefix(octal, "0o"), 8
	}
	number, err := strconv.ParseUint(text, base, 12)
	bits := fs.FileMode(number & 0o777)
	for bit, special := range map[uint64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if number&bit != 0 {
			bits |= special
		}
	}
	return bits, err
}

// problem is an error without any content of a file.
type problem string

func (p problem) Error() string { return string(p) }

// decodeContent decodes content by the name of its encoding in cloud-init.
func decodeContent(encoding, content string) ([]byte, error) {
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "", "text/plain":
		return []byte(content), nil
	case "b64", "base64":
		return fromBase64(content)
	case "gz", "gzip":
		return uncompress([]byte(content))
	case "gz+b64", "gz+base64", "gzip+b64", "gzip+base64":
		compressed, err := fromBase64(content)
		if err != nil {
			return nil, err
		}
		return uncompress(compressed)
	}
	return nil, problem("has an encoding that the guest does not support")
}

func fromBase64(content string) ([]byte, error) {
	decoded, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(content), ""))
	if err != nil {
		return nil, problem("is not base64")
	}
	return decoded, nil
}

func uncompress(content []byte) ([]byte, error) {
	reader, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		return nil, problem("is not compressed with gzip")
	}
	plain, err := io.ReadAll(io.LimitReader(reader, largestFile+1))
	if err != nil {
		return nil, problem("is not completely compressed with gzip")
	}
	if len(plain) > largestFile {
		return nil, problem(fmt.Sprintf("is larger than %d MiB", largestFile>>20))
	}
	return plain, nil
}
