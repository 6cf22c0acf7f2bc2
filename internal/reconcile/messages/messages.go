// Package messages contains sentences of a Machine's last operation and of events: MCM's where it has
// one, since other programs search for it. Controllers write them and never read them.
package messages

import (
	"fmt"
	"strings"
	"time"
	"unicode"
)

// Parts of the description of a Machine's last operation.
const (
	// Provider precedes the driver's message.
	Provider = "Cloud provider message - "
	// ProviderError precedes it, and Initialize follows it, if an initialization failed.
	ProviderError = "Provider error: "
	Initialize    = "Initialize VM Instance"

	// NoAnswer describes a driver call that does not return.
	NoAnswer = "The driver has not answered"
	// VMLost describes a VM that the driver does not find.
	VMLost = "does not exist any more"
	// NeverJoined and GivenUp describe timeouts that set the phase Failed.
	NeverJoined = "failed to join the cluster in"
	GivenUp     = "Updating machine phase to Failed"

	// Terminating and those that follow end the description of a deletion with its next step.
	Terminating       = "Set machine status to termination. Now, getting VM Status"
	Drain             = "Initiate node drain"
	DeleteAttachments = "Delete Volume Attachments"
	DeleteVM          = "Initiate VM deletion"
	DeleteNode        = "Initiate node object deletion"

	// AlsoThatOf describes a VM that two objects name.
	AlsoThatOf = "is also that of"
)

// Parts of the events of a set: why a Machine was deleted, and when the next is created.
const (
	// BeforeReason is between the names of the Machines and the reason.
	BeforeReason = "): "
	// Failed precedes the last operation of a Machine that is replaced.
	Failed = "it failed: "
	// Named describes the choice of an autoscaler.
	Named = "it was named for deletion"
	// SetDeleted describes the deletion of the set.
	SetDeleted = "the machine set is being deleted"
	// NextMade precedes the time for which a set with failing Machines waits, and LastFailed the
	// name and the failure of the last one.
	NextMade   = "the next are made in "
	LastFailed = ". The last was "
)

type integer interface{ ~int | ~int32 | ~int64 }

// Machines returns "1 machine", "2 machines".
func Machines[N integer](n N) string {
	if n == 1 {
		return "1 machine"
	}
	return fmt.Sprintf("%d machines", n)
}

// Replicas returns "1 replica", "2 replicas".
func Replicas[N integer](n N) string {
	if n == 1 {
		return "1 replica"
	}
	return fmt.Sprintf("%d replicas", n)
}

// Are returns "is" after 1, else "are".
func Are[N integer](n N) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// Have returns "has" after 1, else "have".
func Have[N integer](n N) string {
	if n == 1 {
		return "has"
	}
	return "have"
}

// Duration formats a rounded duration without parts that are zero: 2.3s, 1m14s, 20m, 2h.
func Duration(d time.Duration) string {
	switch {
	case d.Abs() < time.Second:
		d = d.Round(time.Millisecond)
	case d.Abs() < 10*time.Second:
		d = d.Round(100 * time.Millisecond)
	default:
		d = d.Round(time.Second)
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// ToPrintable makes a text from a provider or a guest safe for a terminal: it replaces each character that is not
// printable, except line breaks and tabs, by a space. Escape sequences would move the cursor, or make the terminal type.
func ToPrintable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}

// Line returns such a text in one line, without trailing spaces.
func Line(text string) string {
	return strings.TrimRight(strings.NewReplacer("\n", " ", "\t", " ").Replace(ToPrintable(text)), " ")
}

// Cut replaces what Shorten has left out.
const Cut = " [...] "

// Shorten cuts a text to so many bytes, which must be more than Cut has. It keeps the beginning and
// the end, where a description has its next step. What is not UTF-8 is replaced, as the API server
// does, so that the text can be compared with a stored one, and what is not printable, too.
func Shorten(text string, longest int) string {
	text = ToPrintable(strings.ToValidUTF8(text, "\uFFFD"))
	if len(text) <= longest {
		return text
	}
	room := longest - len(Cut)
	end := room / 4
	return strings.ToValidUTF8(text[:room-end], "") + Cut + strings.ToValidUTF8(text[len(text)-end:], "")
}
