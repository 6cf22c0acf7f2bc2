package userdata

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// formats are the formats of other guests, by their first bytes in lower case.
var formats = []struct{ start, name string }{
	{"#cloud-config", "it is a #cloud-config, for guests with cloud-init"},
	{"## template: jinja", "it is a template of cloud-init"},
	{"#cloud-boothook", "it is a script of cloud-init"},
	{"#include", "it is a list of addresses for cloud-init"},
	{"#!", "it is a script, for guests with cloud-init"},
	{"content-type: multipart/", "it is a MIME message, for guests with cloud-init"},
	{"mime-version:", "it is a MIME message, for guests with cloud-init"},
	{"{", "it is JSON, perhaps for Ignition"},
}

// formatOf describes user data of another format, without any of its content, which may hold secrets.
func formatOf(content []byte) string {
	text := bytes.TrimSpace(content)
	switch {
	case len(text) == 0:
		return "it is empty"
	case bytes.HasPrefix(content, []byte("\x1f\x8b")):
		return "it is compressed with gzip"
	case bytes.HasPrefix(text, []byte(Header)) && len(text) < len(bytes.TrimRight(content, " \t\r\n")):
		return "there are blanks or empty lines before it"
	}
	start := strings.ToLower(string(text[:min(len(text), 64)]))
	for _, format := range formats {
		if strings.HasPrefix(start, format.start) {
			return format.name
		}
	}
	if !utf8.Valid(content) || bytes.ContainsRune(content, 0) {
		return "it is not text"
	}
	return "it has a format that this guest does not support"
}
