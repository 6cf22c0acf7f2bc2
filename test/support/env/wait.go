package env

import "time"

// WaitTimeout is the maximum time that a test waits for a real API server, a program or a VM. It is many times
// what these take while all other tests run, so only a condition that never becomes true exceeds it.
const WaitTimeout = 5 * time.Minute
