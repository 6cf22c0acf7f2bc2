package fields

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

const (
	// maxProblems limits the problems in a message, which becomes part of a Machine's
	// status.
	maxProblems = 20
	// maxLength limits the text of a problem, in bytes: it may quote the object.
	maxLength = 500
)

// Problems are all problems with an object, so that a user can correct them at once. The
// zero value is empty.
type Problems struct {
	texts []string
	// invalid means that there is a problem other than a size out of its range.
	invalid bool
}

func (p *Problems) add(path string, invalid bool, format string, args ...any) {
	text := path + ": " + fmt.Sprintf(format, args...)
	if len(text) > maxLength {
		text = strings.ToValidUTF8(text[:maxLength], "") + "…"
	}
	p.texts = append(p.texts, text)
	p.invalid = p.invalid || invalid
}

// Err returns all problems as one error with the code InvalidArgument, or with the given
// one if they all are sizes out of their range. It returns nil if there are none.
func (p *Problems) Err(outOfRange codes.Code) error {
	if len(p.texts) == 0 {
		return nil
	}
	code := codes.InvalidArgument
	if !p.invalid {
		code = outOfRange
	}
	texts := p.texts
	if more := len(texts) - maxProblems; more > 0 {
		texts = append(slices.Clone(texts[:maxProblems]), fmt.Sprintf("and %d more", more))
	}
	return status.Error(code, strings.Join(texts, "; "))
}
