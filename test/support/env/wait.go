package env

import "time"

// WaitTimeout is how long a test waits at most for what a real API server, a program or a VM is to do. It is many
// times what that takes while every other test runs too: only what never happens takes so long.
const WaitTimeout = 5 * time.Minute
