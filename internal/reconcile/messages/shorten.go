package messages

import "strings"

// Cut stands for what Shorten has left out.
const Cut = " [...] "

// Shorten cuts a text to at most so many bytes, of which there are to be more than Cut has. It
// keeps more of the beginning than of the end: at the end of a description are the words that
// say which step is next. What is not UTF-8 is replaced, as it would be in an object that is
// stored, so that the text can be compared with that.
func Shorten(text string, longest int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= longest {
		return text
	}
	room := longest - len(Cut)
	end := room / 4
	return strings.ToValidUTF8(text[:room-end], "") + Cut + strings.ToValidUTF8(text[len(text)-end:], "")
}
