// Package userdata fills the placeholders of user data. It imports nothing of Kubernetes, so that a
// build of it for fuzzing takes seconds.
package userdata

import (
	"bytes"
	"net/url"
)

// Placeholders in user data. They may also be escaped for a URL query.
const (
	PlaceholderToken       = "<<BOOTSTRAP_TOKEN>>"
	PlaceholderMachineName = "<<MACHINE_NAME>>"
)

// Render fills the placeholders of user data. The escaped form of a placeholder is filled, with
// the escaped value, only where the plain form is absent. An empty token leaves its placeholder.
func Render(userData []byte, machineName, token string) []byte {
	userData = replace(userData, PlaceholderMachineName, machineName)
	if token == "" {
		return userData
	}
	return replace(userData, PlaceholderToken, token)
}

func replace(data []byte, placeholder, value string) []byte {
	if bytes.Contains(data, []byte(placeholder)) {
		return bytes.ReplaceAll(data, []byte(placeholder), []byte(value))
	}
	return bytes.ReplaceAll(data, []byte(url.QueryEscape(placeholder)), []byte(url.QueryEscape(value)))
}
