// Package kindname has the form of the names of drivers, which MachineClasses have as provider.
package kindname

import "regexp"

// Form is that of a name, in words.
const Form = "must have 1 to 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit"

var form = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

// IsValid reports whether a text has the form.
func IsValid(text string) bool { return form.MatchString(text) }
