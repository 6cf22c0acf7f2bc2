// Package messages holds the sentences that controllers write into a Machine's last operation and
// into events. They are MCM's where it has such a sentence, since other programs look for them.
//
// Controllers only write them. What a controller does never depends on a sentence.
package messages

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
