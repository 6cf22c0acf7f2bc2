package language

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// allowed matches phrases that contain a term of the table in another meaning.
var allowed = regexp.MustCompile(`(?i)\b(` + strings.Join([]string{
	`there\s+is\s+no`, `is\s+no\s+(longer|more|less)`, // idiomatic
	`all\s+at\s+once`,                 // at the same time
	`ends\s+(with|in)`, `both\s+ends`, // of texts and cables
	`(users|identities)\s+who\s+may`,
	`(parent )?death ?signal`, // the kernel's term
	`lost answer`,             // LostAnswer of driver/sim
	// The provider of examples/mcm-provider.
	`(package|provider:?) "?folder`, `providerSpec\.folder`, `folder: (/tmp/vms|%s)`,
	`the provider says no`, // in the recordings of MCM
	// Keys of the JSON of explain and rollout status.
	`pool\.wanted`, `wanted: number`, `report\??\.answer`, `answer: string`,
}, "|") + `)\b`)

// unread are files that hold no text of this project: what others wrote, what tools write from other files, and
// recordings.
var unread = []string{
	"LICENSE",
	"CONTRIBUTING.md", // has the table
	"test/suites/language",
	"config/crd", // generated from api
	"docs/reference/api",
	"charts/millwright/crds",
	"charts/millwright/files", // copies from config
	"compat/mcm/kubernetes",
	"ui/vendor",       // libraries
	"internal/ui/web", // bundled from ui
}

// readExtensions are those of files that hold text.
var readExtensions = []string{".go", ".md", ".yaml", ".yml", ".sh", ".proto", ".tpl", ".txt", ".lua", ".py", ".toml", ".conf", ".html", ".ts", ".tsx", ".css"}

// isRead reports whether a file holds text that is to be checked.
func isRead(name string) bool {
	if below(unread, name) {
		return false
	}
	if slices.Contains(strings.Split(filepath.ToSlash(name), "/"), "testdata") {
		return false
	}
	return slices.Contains(readExtensions, filepath.Ext(name)) || filepath.Base(name) == "Makefile"
}

// below reports whether a file is one of those listed, or in a directory listed.
func below(list []string, name string) bool {
	return slices.ContainsFunc(list, func(prefix string) bool {
		return name == prefix || strings.HasPrefix(name, prefix+"/")
	})
}
