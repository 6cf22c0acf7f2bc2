package program

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryMax is the file with the memory limit of the container, in cgroup v2.
const memoryMax = "/sys/fs/cgroup/memory.max"

// limitMemory sets the soft limit of the runtime to nine tenths of the container's memory limit, so that garbage is
// collected more often before the process exceeds it and is killed. The rest is for memory outside of the heap. It does
// nothing without a limit, or if the environment sets GOMEMLIMIT.
func limitMemory(file string) {
	if _, set := os.LookupEnv("GOMEMLIMIT"); set {
		return
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return // not in a container with cgroup v2
	}
	// Without a limit, the content is "max".
	if limit, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64); err == nil && limit > 0 {
		debug.SetMemoryLimit(limit / 10 * 9)
	}
}
