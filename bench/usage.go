package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// usage is what processes have used of this machine.
type usage struct {
	cpu time.Duration
	// peak is the most memory that was resident, in bytes: the sum of each process' most.
	peak int64
}

// tick is the unit of CPU times in /proc.
const tick = 10 * time.Millisecond

// stat is what is read of /proc/PID/stat.
type stat struct {
	pid, parent, group int
	cpu                time.Duration // with that of children which have ended
}

// usageOf adds up the processes that the function selects.
func usageOf(selects func(stat) bool) (usage, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return usage{}, err
	}
	var sum usage
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended meanwhile
		}
		s, err := parseStat(string(content))
		if err != nil {
			return usage{}, fmt.Errorf("%s: %w", path, err)
		}
		if !selects(s) {
			continue
		}
		sum.cpu += s.cpu
		sum.peak += peakOf(s.pid)
	}
	return sum, nil
}

// parseStat reads a line of proc_pid_stat(5).
func parseStat(line string) (stat, error) {
	number, rest, _ := strings.Cut(line, " ")
	// The name, in brackets, may hold spaces and brackets.
	end := strings.LastIndexByte(rest, ')')
	fields := strings.Fields(rest[end+1:])
	const state, parent, group, user, system, childUser, childSystem = 0, 1, 2, 11, 12, 13, 14
	if end < 0 || len(fields) <= childSystem {
		return stat{}, fmt.Errorf("cannot read %q", line)
	}
	var err error
	read := func(text string) int {
		n, problem := strconv.Atoi(text)
		if problem != nil {
			err = problem
		}
		return n
	}
	s := stat{pid: read(number), parent: read(fields[parent]), group: read(fields[group])}
	for _, i := range []int{user, system, childUser, childSystem} {
		s.cpu += time.Duration(read(fields[i])) * tick
	}
	return s, err
}

// peakOf is the most memory that was resident; 0 if the process has ended.
func peakOf(pid int) int64 {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(content)) {
		value, found := strings.CutPrefix(line, "VmHWM:")
		if !found {
			continue
		}
		kilobytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return 0
		}
		return kilobytes * 1024
	}
	return 0
}
