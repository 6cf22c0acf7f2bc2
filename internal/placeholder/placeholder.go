// Package placeholder fills the placeholders of user data, also in parts that are encoded as base64 or compressed with
// gzip. It imports no Kubernetes packages, so that it can be built for fuzzing within seconds.
package placeholder

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"strings"
)

// Placeholders in user data. They may also be escaped as in a URL query.
const (
	Token       = "<<BOOTSTRAP_TOKEN>>"
	MachineName = "<<MACHINE_NAME>>"
	ProviderID  = "<<PROVIDER_ID>>"
)

// Value is the value of a placeholder.
type Value struct {
	// Placeholder is the text that is replaced.
	Placeholder string
	// Value replaces it.
	Value string
}

// ErrTooLarge means that a compressed part of the data is too large to look for placeholders in it.
var ErrTooLarge = errors.New("too large to fill placeholders")

const (
	// maxPlain is the maximum size of a part that is not compressed, in bytes: that of a guest's user data.
	maxPlain = 16 << 20
	// maxDepth is how deep encodings may be nested: a #cloud-config that is compressed with gzip may contain
	// compressed files in base64.
	maxDepth = 4
)

// Fill returns the data with the values of the placeholders, in the order of the values. The escaped form of a
// placeholder is replaced by the escaped value, but only if the plain form does not occur in the same part. Parts that
// are compressed with gzip or encoded as base64 are decoded, filled, and encoded again. Parts without placeholders
// are not changed. The error is ErrTooLarge.
func Fill(data []byte, values ...Value) ([]byte, error) { return fill(data, values, 0) }

func fill(data []byte, values []Value, depth int) ([]byte, error) {
	if depth == maxDepth {
		return data, nil
	}
	if bytes.HasPrefix(data, []byte("\x1f\x8b")) {
		return fillCompressed(data, values, depth)
	}
	data, err := fillEncoded(data, values, depth)
	if err != nil {
		return nil, err
	}
	for _, v := range values {
		data = replace(data, v.Placeholder, v.Value)
	}
	return data, nil
}

func replace(data []byte, placeholder, value string) []byte {
	if bytes.Contains(data, []byte(placeholder)) {
		return bytes.ReplaceAll(data, []byte(placeholder), []byte(value))
	}
	return bytes.ReplaceAll(data, []byte(url.QueryEscape(placeholder)), []byte(url.QueryEscape(value)))
}

// fillCompressed fills data that is compressed with gzip. It does not change other data that begins like gzip.
func fillCompressed(data []byte, values []Value, depth int) ([]byte, error) {
	reader, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return data, nil
	}
	plain, err := io.ReadAll(io.LimitReader(reader, maxPlain+1))
	if err != nil {
		return data, nil
	}
	if len(plain) > maxPlain {
		return nil, fmt.Errorf("%w: a part that is compressed with gzip has more than %d MiB; fill its placeholders before you compress it, or make it smaller",
			ErrTooLarge, maxPlain>>20)
	}
	filled, err := fill(plain, values, depth+1)
	if err != nil || bytes.Equal(filled, plain) {
		return data, err
	}
	var out bytes.Buffer
	writer, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		panic(err) // the level is valid
	}
	_, _ = writer.Write(filled) // a buffer accepts everything
	_ = writer.Close()
	return out.Bytes(), nil
}

// encoded matches text that may be base64, on one line or on several.
var encoded = regexp.MustCompile(`[A-Za-z0-9+/]{20,}(?:\r?\n[ \t]*[A-Za-z0-9+/]+)*={0,2}`)

// Programs wrap base64 after 64 or 76 characters. Other lengths mean that the following line is something else.
const (
	shortestWrap = 60
	longestWrap  = 80
)

// fillEncoded fills the parts of a text that are encoded as base64.
func fillEncoded(data []byte, values []Value, depth int) ([]byte, error) {
	var out bytes.Buffer
	done := 0
	for done < len(data) {
		found := encoded.FindIndex(data[done:])
		if found == nil {
			break
		}
		from, to := done+found[0], done+found[1]
		b := blockAt(data, from, to)
		filled, err := b.fill(values, depth)
		if err != nil {
			return nil, err
		}
		out.Write(data[done:from])
		out.Write(filled)
		done = from + len(b.text)
	}
	if done == 0 {
		return data, nil
	}
	out.Write(data[done:])
	return out.Bytes(), nil
}

// block is text that may be base64.
type block struct {
	text []byte
	// width is the length of all lines except the last one, and separator is between the lines. A block on one
	// line has no separator.
	width     int
	separator string
}

// blockAt returns the block at the start of a match: one line, or lines of the same length and indentation, of which
// the last may be shorter. Only whole lines belong to a block.
func blockAt(data []byte, from, to int) block {
	first := end(data, from, to)
	b := block{text: data[from:first], width: first - from}
	if b.width < shortestWrap || b.width > longestWrap || b.width%4 != 0 {
		return b
	}
	indent, isWholeLine := indentation(data, from)
	for finish := first; finish < to; {
		begin := to - len(bytes.TrimLeft(data[finish:to], " \t\r\n"))
		separator := string(data[finish:begin])
		isNext := b.separator == "" && (!isWholeLine || strings.TrimLeft(separator, "\r\n") == indent) || separator == b.separator
		finish = end(data, begin, to)
		if !isNext || finish-begin > b.width || !isLineEnd(data[finish:]) {
			break
		}
		b.text, b.separator = data[from:finish], separator
		if finish-begin < b.width {
			break
		}
	}
	return b
}

// isLineEnd reports whether the rest of the data begins after a complete line.
func isLineEnd(rest []byte) bool { return len(rest) == 0 || rest[0] == '\n' || rest[0] == '\r' }

// end returns the end of the line at an offset, but at most the given limit.
func end(data []byte, from, to int) int {
	if size := bytes.IndexAny(data[from:to], "\r\n"); size >= 0 {
		return from + size
	}
	return to
}

// indentation returns the text between the start of the line and an offset, and whether it is only blanks.
func indentation(data []byte, at int) (string, bool) {
	before := data[1+bytes.LastIndexByte(data[:at], '\n') : at]
	return string(before), len(bytes.TrimLeft(before, " \t")) == 0
}

// fill returns the block with filled placeholders, in the same layout. It returns the text unchanged if it is not
// base64.
func (b block) fill(values []Value, depth int) ([]byte, error) {
	joined := string(b.text)
	if b.separator != "" {
		joined = strings.ReplaceAll(joined, b.separator, "")
	}
	decoded, err := base64.StdEncoding.DecodeString(joined)
	if err != nil {
		return b.text, nil
	}
	filled, err := fill(decoded, values, depth+1)
	if err != nil || bytes.Equal(filled, decoded) {
		return b.text, err
	}
	again := base64.StdEncoding.EncodeToString(filled)
	if b.separator == "" {
		return []byte(again), nil
	}
	var lines []string
	for len(again) > b.width {
		lines, again = append(lines, again[:b.width]), again[b.width:]
	}
	return []byte(strings.Join(append(lines, again), b.separator)), nil
}
