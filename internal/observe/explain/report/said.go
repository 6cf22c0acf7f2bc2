package report

import (
	"cmp"
	"errors"
	"strings"

	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Description returns the description of a Machine's last operation for users: without the Machine's name, without
// the phrases that MCM adds, and only with the message of a driver's error.
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

// BackOffText returns the message about a back-off without its end time, and without the second mention of the
// Machine that failed last.
func BackOffText(message string) string {
	why, details, _ := strings.Cut(message, ": ")
	_, failed, found := strings.Cut(details, messages.LastFailed)
	if !found {
		return why
	}
	name, description, _ := strings.Cut(failed, ": ")
	return why + "; last failure: " + name + ": " + Description(description, name)
}
