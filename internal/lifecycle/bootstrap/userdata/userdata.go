// Package userdata fills the placeholders of user data. It imports no Kubernetes packages, so that it can be
// built for fuzzing within seconds.
package userdata

import (
	"bytes"
	"net/url"
)

// Placeholders in user data. They may also be escaped as in a URL query.
const (
	PlaceholderToken       = "<<BOOTSTRAP_TOKEN>>"
	PlaceholderMachineName = "<<MACHINE_NAME>>"
)

// Render fills the placeholders of user data. The escaped form of a placeholder is replaced by the escaped
// value, but only if the plain form does not occur. An empty token leaves its placeholder unchanged.
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
