package image

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"hash"
	"strings"
)

// algorithms are the hash functions of checksums, by their names.
var algorithms = map[string]func() hash.Hash{"sha256": sha256.New, "sha512": sha512.New}

// checksum is the expected hash of content. The zero value means that the content is not verified.
type checksum struct {
	algorithm string
	sum       []byte
}

// IsChecksum reports whether a text has the form of Source.Checksum. The empty text has it.
func IsChecksum(text string) bool {
	_, ok := parseChecksum(text)
	return ok
}

// parseChecksum returns the zero checksum if the text is empty.
func parseChecksum(text string) (_ checksum, ok bool) {
	if text == "" {
		return checksum{}, true
	}
	name, digits, _ := strings.Cut(text, ":")
	algorithm, ok := algorithms[name]
	if !ok || digits != strings.ToLower(digits) {
		return checksum{}, false
	}
	sum, err := hex.DecodeString(digits)
	return checksum{algorithm: name, sum: sum}, err == nil && len(sum) == algorithm().Size()
}

func (c checksum) set() bool { return c.algorithm != "" }

// hash returns the function that computes the sum. Without an expected sum, nothing reads the result.
func (c checksum) hash() hash.Hash {
	if algorithm, ok := algorithms[c.algorithm]; ok {
		return algorithm()
	}
	return sha256.New()
}

// String returns the form that parseChecksum parses.
func (c checksum) String() string { return c.algorithm + ":" + hex.EncodeToString(c.sum) }
