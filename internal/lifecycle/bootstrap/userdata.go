package bootstrap

import (
	"bytes"
	"net/url"
)

// The placeholders in user data. Each may also stand there escaped for a URL query.
const (
	PlaceholderToken       = "<<BOOTSTRAP_TOKEN>>"
	PlaceholderMachineName = "<<MACHINE_NAME>>"
)

// UserDataKey is the key of a class's Secret that holds the user data.
const UserDataKey = "userData"

// Render fills the placeholders of user data. The plain form of a placeholder wins:
// only where it is absent is the escaped form looked for, and filled with the escaped
// value. An empty token leaves its placeholder as it is.
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
