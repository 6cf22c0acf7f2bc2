package messages

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/test/support/tier"
)

func TestShorten(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "",
		"exactly as long as it may be 30": "exactly as long as it may be 30",
		"not as long":                     "not as long",
		"the beginning, much that is left out, and the finish": "the beginning, muc [...] finish",
		"\xff is not a letter":                                 "\uFFFD is not a letter",
		"a\x1b[2J\u009b\n\tb":                                  "a [2J \n\tb",
	} {
		if got := Shorten(text, 31); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

// TestShorten_KeepsBothEnds checks that the result is valid UTF-8 and short enough for any text.
func TestShorten_KeepsBothEnds(t *testing.T) {
	tier.Check(t, func(t *rapid.T) {
		text, longest := rapid.String().Draw(t, "text"), rapid.IntRange(20, 60).Draw(t, "longest")
		text += string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
		got := Shorten(text, longest)
		if len(got) > longest || !utf8.ValidString(got) {
			t.Fatalf("%q becomes %q, of %d bytes", text, got, len(got))
		}
		begin, end, cut := strings.Cut(got, Cut)
		valid := ToPrintable(strings.ToValidUTF8(text, "\uFFFD"))
		if !cut && got != valid || cut && !(strings.HasPrefix(valid, begin) && strings.HasSuffix(valid, end)) {
			t.Fatalf("%q becomes %q", text, got)
		}
		if again := Shorten(got, longest); again != got {
			t.Fatalf("%q becomes %q the second time", got, again)
		}
	})
}

// TestShorten_KeepsCauseInProviderResponse checks that the message of a JSON response stays, wherever it is in the text.
func TestShorten_KeepsCauseInProviderResponse(t *testing.T) {
	const cause = "Quota exceeded for instances: Requested 1, but already used 10 of 10 instances"
	long := strings.Repeat("/v2.1/servers", 40)
	for name, response := range map[string]string{
		"JSON":        `{"forbidden": {"code": 403, "message": "` + cause + `"}}`,
		"quoted JSON": `"{\"error\":{\"Message\":\"` + cause + `\"}}"`,
	} {
		for position, text := range map[string]string{
			"beginning": response + long + "The machine is retried.",
			"middle":    "Expected HTTP response code [200 202] " + long + response + long + "The machine is retried.",
			"end":       "Expected HTTP response code [200 202] " + long + response,
		} {
			got := Shorten(text, 240)
			if len(got) > 240 || !strings.Contains(got, cause) || !strings.HasPrefix(got, text[:20]) || !strings.HasSuffix(got, text[len(text)-10:]) {
				t.Errorf("%s at the %s becomes %q, of %d bytes", name, position, got, len(got))
			}
		}
	}
	if got := Shorten(strings.Repeat("x", 300)+`"message": "`+strings.Repeat("é", 300)+`"`, 240); len(got) > 240 || !utf8.ValidString(got) {
		t.Errorf("got %q, of %d bytes", got, len(got))
	}
}
