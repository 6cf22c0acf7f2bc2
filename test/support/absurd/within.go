package absurd

import (
	"fmt"
	"time"
)

// limit is far above what any run needs, even on a busy machine.
const limit = 30 * time.Second

// Within calls a function, and panics if it does not return in time, because fuzz tests have no timeout of their
// own.
func Within(what string, call func()) {
	guard := time.AfterFunc(limit, func() { panic(fmt.Sprintf("%s has not ended within %s", what, limit)) })
	defer guard.Stop()
	call()
}
