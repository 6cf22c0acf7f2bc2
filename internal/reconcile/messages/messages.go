// Package messages contains texts for the last operation of a Machine and for events. Where MCM has a text, it
// is used unchanged, because other programs search for it. Controllers write these texts and never read them.
package messages

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"
)

// Parts of the description of a Machine's last operation.
const (
	// Provider precedes the driver's message.
	Provider = "Cloud provider message - "
	// ProviderError precedes the driver's message if an initialization failed, and Initialize follows it.
	ProviderError = "Provider error: "
	Initialize    = "Initialize VM Instance"

	// NoResponse describes a driver call that does not return.
	NoResponse = "The driver has not responded"
	// VMLost is about a VM that the driver does not find.
	VMLost = "no longer exists"
	// NeverJoined and GivenUp describe timeouts that set the phase Failed.
	NeverJoined = "failed to join the cluster in"
	GivenUp     = "Updating machine phase to Failed"

	// Terminating and the following constants are at the end of the description of a deletion. They name its
	// next step.
	Terminating       = "Set machine status to termination. Now, getting VM Status"
	Drain             = "Initiate node drain"
	DeleteAttachments = "Delete Volume Attachments"
	DeleteVM          = "Initiate VM deletion"
	DeleteNode        = "Initiate node object deletion"

	// AlsoOwnedBy is about a VM that two objects name.
	AlsoOwnedBy = "also belongs to"
)

// Parts of the events of a set: why a Machine was deleted, and when the next one is created.
const (
	// BeforeReason is between the names of the Machines and the reason.
	BeforeReason = "): "
	// Failed precedes the last operation of a Machine that is being replaced.
	Failed = "it failed: "
	// Named is the reason for the deletion of a Machine that an autoscaler named.
	Named = "it was named for deletion"
	// SetDeleted is the reason for the deletion of a set's Machines.
	SetDeleted = "the machine set is being deleted"
	// NextMade precedes the time for which a set with failing Machines waits. LastFailed precedes the name and
	// the failure of the last one.
	NextMade   = "the next are created in "
	LastFailed = ". The last to fail was "
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

// Are returns "is" for 1, or else "are".
func Are[N integer](n N) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// Have returns "has" for 1, or else "have".
func Have[N integer](n N) string {
	if n == 1 {
		return "has"
	}
	return "have"
}

// Duration formats a rounded duration without units that are zero: 2.3s, 1m14s, 20m, 2h.
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

// ToPrintable makes a text from a provider or a guest safe for a terminal. It replaces each character that is
// not printable, except line breaks and tabs, with a space. Escape sequences could otherwise move the cursor or
// make the terminal type input.
func ToPrintable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}

// Line converts such a text to a single line without trailing spaces.
func Line(text string) string {
	return strings.TrimRight(strings.NewReplacer("\n", " ", "\t", " ").Replace(ToPrintable(text)), " ")
}

// Cut replaces the part that Shorten removes.
const Cut = " [...] "

// Shorten shortens a text to at most longest bytes, which must be more than the length of Cut. It keeps the
// beginning, and the end, where a description has its next step. It also keeps the message of a provider's JSON
// response, because that is the cause. It replaces invalid UTF-8 in the same way as the API server, so that the text
// can be compared with a stored one. It also replaces characters that are not printable.
func Shorten(text string, longest int) string {
	text = ToPrintable(strings.ToValidUTF8(text, "\uFFFD"))
	if len(text) <= longest {
		return text
	}
	middle := Cut
	kept := longest - len(Cut)
	if cause := providerMessage(text); cause != "" && longest >= shortestWithCause {
		with := Cut + strings.ToValidUTF8(cause[:min(len(cause), longest/2)], "") + Cut
		if left := longest - len(with); !strings.Contains(text[:left-left/4], cause) && !strings.Contains(text[len(text)-left/4:], cause) {
			middle, kept = with, left
		}
	}
	end := kept / 4
	return strings.ToValidUTF8(text[:kept-end], "") + middle + strings.ToValidUTF8(text[len(text)-end:], "")
}

// shortestWithCause is the minimum number of bytes in which Shorten keeps a provider's message.
const shortestWithCause = 100

// jsonMessage matches the message of an error in JSON, as the APIs of most providers return it. The JSON may be inside
// of a quoted string.
var jsonMessage = regexp.MustCompile(`(?i)\\?"message\\?":\s*\\?"([^"\\]+)`)

// providerMessage returns the first message of a JSON response in a text, or an empty string if there is none.
func providerMessage(text string) string {
	const searched = 64 << 10 // bytes; messages of drivers may be megabytes long
	if found := jsonMessage.FindStringSubmatch(text[:min(len(text), searched)]); found != nil {
		return found[1]
	}
	return ""
}
