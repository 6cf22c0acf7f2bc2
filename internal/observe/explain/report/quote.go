package report

import (
	"errors"
	"strings"

	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Reported is what a controller said of a Machine, for people: without its name, without what
// MCM writes before and after what happened, and of a driver's error only the message.
func Reported(description, machine string) string {
	text := strings.TrimPrefix(description, "Machine "+machine+" ")
	text, _, _ = strings.Cut(text, ". "+messages.GivenUp)
	for _, prefix := range []string{messages.Provider, messages.ProviderError} {
		text = strings.TrimPrefix(text, prefix)
	}
	for _, step := range []string{
		messages.Initialize, messages.Drain, messages.DeleteAttachments, messages.DeleteVM, messages.DeleteNode, messages.Terminating,
	} {
		if rest := strings.TrimSpace(strings.TrimSuffix(text, step)); rest != "" {
			text = rest
		}
	}
	if parsed, ok := status.FromError(errors.New(strings.TrimSuffix(text, "."))); ok {
		return parsed.Message()
	}
	return text
}

// After is the part of a text after a separator, or all of it.
func After(text, separator string) string {
	if _, after, found := strings.Cut(text, separator); found {
		return after
	}
	return text
}
