package report

import (
	"cmp"
	"errors"
	"strings"

	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Description returns the description of a Machine's last operation for people: without the Machine's
// name, without MCM's words around what happened, and of a driver's error only the message.
func Description(description, machine string) string {
	text := strings.TrimPrefix(description, "Machine "+machine+" ")
	text, _, _ = strings.Cut(text, ". "+messages.GivenUp)
	text = strings.TrimPrefix(strings.TrimPrefix(text, messages.Provider), messages.ProviderError)
	for _, step := range []string{
		messages.Initialize, messages.Drain, messages.DeleteAttachments, messages.DeleteVM, messages.DeleteNode, messages.Terminating,
	} {
		text = cmp.Or(strings.TrimSpace(strings.TrimSuffix(text, step)), text)
	}
	if parsed, ok := status.FromError(errors.New(strings.TrimSuffix(text, "."))); ok {
		return parsed.Message()
	}
	return text
}

// BackOffText returns the message about a back-off without what is said beside it: when it ends, and the
// name of the Machine that failed last a second time.
func BackOffText(message string) string {
	why, rest, _ := strings.Cut(message, ": ")
	_, failed, found := strings.Cut(rest, messages.LastFailed)
	if !found {
		return why
	}
	name, said, _ := strings.Cut(failed, ": ")
	return why + ", at last " + name + ": " + Description(said, name)
}
