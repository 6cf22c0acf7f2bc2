package driverpb

import (
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of the protocol.
const (
	// MaxMessage is the maximum length of a message, in bytes. The longest messages are lists; a list of 50,000 VMs
	// fits.
	MaxMessage = 16 << 20
	// MaxFields is the maximum number of fields in a message, including those of the messages in it and the entries of
	// its lists and maps.
	MaxFields = 1 << 18
	// MaxHeaders is the maximum length of the headers of a call, in bytes.
	MaxHeaders = 16 << 10
	// DefaultOperations and MaxOperations are the default and the maximum of Registration.max_operations.
	DefaultOperations, MaxOperations = 50, 1000
	// MaxText is the maximum length of an error's message, in bytes.
	MaxText = 4096
	// MaxVersion is the maximum length of the version of a driver, in bytes.
	MaxVersion = 63
	// MinInstance and MaxInstance bound the length of Registration.instance, in bytes.
	MinInstance, MaxInstance = 16, 64
)

// KeepaliveTime is how long a connection may be idle before it is probed, and also how long the other side has to
// respond to the probe.
const KeepaliveTime = 10 * time.Second

// Shortened returns the message of an error as valid UTF-8, truncated to MaxText bytes.
func Shortened(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= MaxText {
		return text
	}
	end := MaxText - len("…")
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}
