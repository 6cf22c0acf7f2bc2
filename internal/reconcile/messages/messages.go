// Package messages holds the sentences that controllers write into a Machine's last operation and
// into events. They are MCM's where it has such a sentence, since other programs look for them.
//
// Controllers only write them. What a controller does never depends on a sentence.
package messages

import (
	"fmt"
	"strings"
	"time"
)

// Words in the description of a Machine's last operation.
const (
	// Provider comes before the provider's own words.
	Provider = "Cloud provider message - "
	// ProviderError comes before them, and Initialize after them, if an initialisation
	// failed.
	ProviderError = "Provider error: "
	Initialize    = "Initialize VM Instance"

	// NoAnswer: a call to the driver does not come back.
	NoAnswer = "The driver has not answered"
	// VMLost: the driver does not know the VM any more.
	VMLost = "does not exist any more"
	// NeverJoined and GivenUp: with this the Machine becomes Failed.
	NeverJoined = "failed to join the cluster in"
	GivenUp     = "Updating machine phase to Failed"
	// Delayed: it would be Failed, but others come first.
	Delayed = "as other machines of"

	// Terminating and those that follow end a sentence about a deletion. They say which
	// step is next. The last of them only MCM writes.
	Terminating       = "Set machine status to termination. Now, getting VM Status"
	Drain             = "Initiate node drain"
	DeleteAttachments = "Delete Volume Attachments"
	DeleteVM          = "Initiate VM deletion"
	DeleteNode        = "Initiate node object deletion"
	RemoveFinalizer   = "Initiate machine object finalizer removal"

	// AlsoThatOf: two objects claim one VM.
	AlsoThatOf = "is also that of"
	// StillThere: the provider was asked to delete the VM, and has it.
	StillThere = "still has the VM"
)

// Words in events of a set: why a Machine was deleted, and when the next is made.
const (
	// BeforeReason comes between the names of the Machines and the reason.
	BeforeReason = "): "
	// Failed comes before the last operation of a Machine that is replaced.
	Failed = "it failed: "
	// Named: an autoscaler chose it.
	Named = "it was named for deletion"
	// SetDeleted: the set goes, with all its Machines.
	SetDeleted = "the machine set is being deleted"
	// NextMade comes before the time for which the set waits, since its Machines fail, and
	// LastFailed before the name of the last of them and why that failed.
	NextMade   = "the next are made in "
	LastFailed = ". The last was "
)

// integer is what machines are counted in.
type integer interface{ ~int | ~int32 | ~int64 }

// Machines is a number of machines: "1 machine", "2 machines".
func Machines[N integer](n N) string {
	if n == 1 {
		return "1 machine"
	}
	return fmt.Sprintf("%d machines", n)
}

// Are is the verb after a number.
func Are[N integer](n N) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// Have is the verb after a number.
func Have[N integer](n N) string {
	if n == 1 {
		return "has"
	}
	return "have"
}

// Duration writes a duration as precisely as people want to know it, and without parts that
// are zero: 2.3s, 1m14s, 20m, 2h.
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

// Cut stands for what Shorten has left out.
const Cut = " [...] "

// Shorten cuts a text to at most so many bytes, of which there are to be more than Cut has. It
// keeps more of the beginning than of the end: at the end of a description are the words that
// say which step is next. What is not UTF-8 is replaced, as it would be in an object that is
// stored, so that the text can be compared with that.
func Shorten(text string, longest int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= longest {
		return text
	}
	room := longest - len(Cut)
	end := room / 4
	return strings.ToValidUTF8(text[:room-end], "") + Cut + strings.ToValidUTF8(text[len(text)-end:], "")
}
