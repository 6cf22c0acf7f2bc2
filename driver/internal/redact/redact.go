// Package redact removes the values of Secrets from texts and errors.
package redact

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/driver/status"
)

const (
	// marker replaces a secret value.
	marker = "[redacted]"
	// containsValues replaces a text from which secret values cannot be removed.
	containsValues = "(text withheld: it contains values of the Secret)"
	// tooManyValues replaces every text if the Secret has more values than the redactor searches for.
	tooManyValues = "(text withheld: the Secret has too many values)"
	// most is the approximate maximum number of forms of values to search for. User data has at most some thousands
	// of lines. The limit prevents a Secret from making each driver call take seconds and a hundred megabytes.
	most = 20_000
	// shortest is the length of the shortest value that is redacted. Shorter values occur in many texts.
	shortest = 8
	// shortestLine is the length of the shortest redacted line of a multi-line value.
	shortestLine = 12
)

// publicKeys are the suffixes of keys in a Secret whose values are not confidential. Providers repeat these values in
// messages that are hard to understand without them. Keys are compared in lower case and without "-", "_" and ".".
var publicKeys = []string{
	"tenant", "tenantname", "tenantid", "user", "username", "domain", "domainname", "domainid",
	"project", "projectname", "projectid", "subscriptionid", "region", "regionname", "url", "endpoint",
}

// longestSegment is the length of the longest part of a URL's path that is not taken for a token.
const longestSegment = 20

// isPublic reports whether a value of a Secret is not confidential. A URL is confidential if it contains a user, a
// query, a fragment, or a part of its path that may be a token.
func isPublic(key, value string) bool {
	key = strings.NewReplacer("-", "", "_", "", ".", "").Replace(strings.ToLower(key))
	if !slices.ContainsFunc(publicKeys, func(end string) bool { return strings.HasSuffix(key, end) }) {
		return false
	}
	if !strings.Contains(value, "://") {
		return !strings.ContainsAny(value, "@?\n")
	}
	u, err := url.Parse(strings.TrimSpace(value))
	return err == nil && u.User == nil && u.RawQuery == "" && u.Fragment == "" &&
		!slices.ContainsFunc(strings.Split(u.Path, "/"), func(segment string) bool { return len(segment) > longestSegment })
}

// Redactor removes secret values from texts and errors. Create one with New.
type Redactor struct {
	needles []string
	// longest is the length of the longest text to search. Longer values are ignored, so long user data need not be
	// encoded.
	longest int
}

// New returns a Redactor for texts of at most longest bytes; 0 means no limit. Secrets may be nil.
func New(longest int, secrets ...*corev1.Secret) *Redactor {
	r := &Redactor{longest: longest}
	if longest == 0 {
		r.longest = math.MaxInt
	}
	for _, secret := range secrets {
		if secret == nil {
			continue
		}
		for key, value := range secret.Data {
			r.learnValue(key, string(value))
		}
		for key, value := range secret.StringData {
			r.learnValue(key, value)
		}
	}
	return r
}

// learnValue adds the value of a key unless it is not confidential, both unchanged and in the forms that occur in messages (trimmed, base64, URL, quoted).
// If the value has several lines, as a key or user data does, it adds each longer line. If the value is a JSON
// object, as a service account is, it adds each string in it.
func (r *Redactor) learnValue(key, value string) {
	if r.tooMany() || isPublic(key, value) {
		return
	}
	r.add(value)
	trimmed := strings.TrimSpace(value)
	if trimmed != value {
		r.add(trimmed)
	}
	if strings.Contains(trimmed, "\n") {
		for line := range strings.Lines(trimmed) {
			if r.tooMany() {
				return
			}
			r.addLine(strings.TrimSpace(line))
		}
	}
	if !strings.HasPrefix(trimmed, "{") {
		return
	}
	var object map[string]any
	if json.Unmarshal([]byte(trimmed), &object) == nil {
		r.learnJSON("", object)
	}
}

// learnJSON adds all strings in the value of a key.
func (r *Redactor) learnJSON(key string, value any) {
	switch value := value.(type) {
	case string:
		r.learnValue(key, value)
	case map[string]any:
		for k, v := range value {
			r.learnJSON(k, v)
		}
	case []any:
		for _, v := range value {
			r.learnJSON(key, v)
		}
	}
}

// tooMany reports whether there are more values than the redactor searches for.
func (r *Redactor) tooMany() bool { return len(r.needles) > most }

// add adds a value and its encoded forms, unless the value is too short or too long.
func (r *Redactor) add(value string) {
	if len(value) < shortest || len(value) > r.longest || strings.Contains(marker, value) {
		return
	}
	raw := []byte(value)
	r.needles = append(r.needles, value,
		// The padded forms start with these.
		base64.RawStdEncoding.EncodeToString(raw),
		base64.RawURLEncoding.EncodeToString(raw),
		url.QueryEscape(value),
		url.PathEscape(value))
	r.addQuoted(value)
}

// addLine adds a line of a value, unchanged and quoted. It has to be cheap: user data has hundreds of lines, and
// every driver returns NotFound before a creation.
func (r *Redactor) addLine(line string) {
	if len(line) < shortestLine || len(line) > r.longest {
		return
	}
	r.needles = append(r.needles, line)
	if strings.ContainsFunc(line, func(c rune) bool { return c < ' ' || c > '~' || strings.ContainsRune("\"\\<>&", c) }) {
		r.addQuoted(line)
	}
}

// addQuoted adds a value as Go and JSON write it inside quotes.
func (r *Redactor) addQuoted(value string) {
	quoted := strconv.Quote(value)
	r.needles = append(r.needles, quoted[1:len(quoted)-1])
	if encoded, err := json.Marshal(value); err == nil {
		r.needles = append(r.needles, string(encoded[1:len(encoded)-1]))
	}
}

// Text returns the text without secret values.
func (r *Redactor) Text(text string) string {
	if text != "" && r.tooMany() {
		return tooManyValues
	}
	// A marker and the adjacent text may together form another secret value.
	for range 4 {
		redacted := r.replace(text)
		if redacted == text {
			return text
		}
		text = redacted
	}
	return containsValues
}

// replace replaces secret values by the marker, and adjacent or overlapping values by a single marker. It replaces
// only whole words, so that a password such as "instance" does not remove parts of other words.
func (r *Redactor) replace(text string) string {
	secret := r.find(text)
	var b strings.Builder
	for i := range len(text) {
		switch {
		case !secret[i]:
			b.WriteByte(text[i])
		case i == 0 || !secret[i-1]:
			b.WriteString(marker)
		}
	}
	return b.String()
}

// find returns, for each byte of the text, whether it belongs to a secret value that is a whole word.
func (r *Redactor) find(text string) []bool {
	found, secret := make([]bool, len(text)), make([]bool, len(text))
	for _, needle := range r.needles {
		for from := 0; ; from++ {
			i := strings.Index(text[from:], needle)
			if i < 0 {
				break
			}
			from += i
			to := from + len(needle)
			fill(found[from:to])
			if isBoundary(text, from) && isBoundary(text, to) {
				fill(secret[from:to])
			}
		}
	}
	// Adjacent and overlapping values are together a whole word.
	for from := 0; from < len(text); from++ {
		to := from
		for to < len(text) && found[to] {
			to++
		}
		if to > from && isBoundary(text, from) && isBoundary(text, to) {
			fill(secret[from:to])
		}
		from = to
	}
	return secret
}

func fill(entries []bool) {
	for i := range entries {
		entries[i] = true
	}
}

// escapes matches a text that ends with an escaped character of a URL, of Go or of JSON.
var escapes = regexp.MustCompile(`(%[0-9A-Fa-f]{2}|\\[abfnrtv]|\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4})$`)

// isBoundary reports whether a word may begin or end at the position.
func isBoundary(text string, at int) bool {
	before, _ := utf8.DecodeLastRuneInString(text[:at])
	after, _ := utf8.DecodeRuneInString(text[at:])
	return at == 0 || at == len(text) || !isAlphanumeric(before) || !isAlphanumeric(after) || escapes.MatchString(text[max(0, at-6):at])
}

func isAlphanumeric(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

// Error returns err unchanged if no text in its tree contains a secret value. Otherwise it returns a Status with
// the same code and redacted texts, for which errors.Is works as for err. errors.As does not: the error that it
// finds could be printed.
func (r *Redactor) Error(err error) error {
	if !r.tooMany() && !slices.ContainsFunc(Texts(err), func(text string) bool { return r.replace(text) != text }) {
		return err
	}
	s, _ := status.FromError(err)
	return status.WrapError(status.Code(err), r.Text(s.Message()), &masked{
		text: r.Text(err.Error()),
		is:   func(target error) bool { return errors.Is(err, target) },
	})
}

// Texts returns the texts of err and of all errors inside it.
func Texts(err error) []string {
	if err == nil {
		return nil
	}
	all := []string{err.Error()}
	switch inner := err.(type) {
	case interface{ Unwrap() error }:
		all = append(all, Texts(inner.Unwrap())...)
	case interface{ Unwrap() []error }:
		for _, e := range inner.Unwrap() {
			all = append(all, Texts(e)...)
		}
	}
	return all
}

// masked replaces the text of an error and compares like the error. It has no field of type error, because a
// formatter could print it.
type masked struct {
	text string
	is   func(target error) bool
}

// Error returns the redacted text.
func (m *masked) Error() string { return m.text }

// Is reports whether errors.Is finds target in the masked error.
func (m *masked) Is(target error) bool { return m.is(target) }
