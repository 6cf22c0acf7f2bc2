// Package names handles the names of simulated machines and the IDs of their VMs.
package names

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/millwright-dev/millwright/driver/sim/internal/dice"
)

// ProviderID returns the ID of the number-th VM of a machine.
func ProviderID(seed uint64, key string, number int) string {
	n := strconv.Itoa(number)
	return fmt.Sprintf("sim:///%s/%s-%08x", key, n, uint32(dice.Hash(strconv.FormatUint(seed, 10), key, n)))
}

// Matches reports whether pattern matches the machine "namespace/name". The pattern is a path.Match pattern for the
// name or, if it contains a slash, for "namespace/name". An empty pattern matches every machine; a malformed one
// matches none.
func Matches(pattern, key string) bool {
	if pattern == "" {
		return true
	}
	if !strings.Contains(pattern, "/") {
		key = key[strings.LastIndexByte(key, '/')+1:]
	}
	ok, err := path.Match(pattern, key)
	return err == nil && ok
}
