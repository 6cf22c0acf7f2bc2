// Package termination leaves why a hypervisor ended, where Kubernetes reads it.
package termination

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// MaxBytes is how many bytes of a container's termination message the kubelet reads.
const MaxBytes = 4096

// Leave writes why the process ends into a file, which is created if need be, and
// returns the exit code to end with, also with an error. A message that is too long for
// Kubernetes is cut. What the file has is overwritten in its place: so a full disk does not matter
// if there is room reserved in it.
func Leave(path string, termination vmpb.Termination) (int, error) {
	text, err := Encode(termination)
	if err == nil {
		err = overwrite(path, text)
	}
	if err != nil {
		err = fmt.Errorf("leaving the termination message: %w", err)
	}
	return exitCode(termination.Reason), err
}

// overwrite does not rename a file, since the path may be a mount point.
func overwrite(path string, text []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err == nil {
		err = file.Truncate(int64(len(text)))
	}
	return errors.Join(err, file.Close())
}

func exitCode(reason string) int {
	switch reason {
	case vmpb.EndGuestShutdown, vmpb.EndTerminated, vmpb.EndStopped:
		return 0
	default:
		return 1
	}
}

// Encode returns what Leave writes: JSON that Kubernetes reads as a whole.
func Encode(termination vmpb.Termination) ([]byte, error) {
	termination.Message = strings.ToValidUTF8(termination.Message, string(utf8.RuneError))
	for {
		text, err := json.Marshal(termination)
		if err != nil || len(text) <= MaxBytes || termination.Message == "" {
			return text, err
		}
		// A byte of the message takes one to six in JSON.
		excess := len(text) - MaxBytes
		keep := max(0, len(termination.Message)-max(1, excess/6))
		termination.Message = cutRune(termination.Message, keep)
	}
}

// cutRune keeps at most n bytes, and only whole runes.
func cutRune(text string, n int) string {
	for n > 0 && n < len(text) && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}
