package main

import (
	"fmt"
	"time"

	"github.com/prometheus/procfs"
)

// usage is what processes have used of this machine.
type usage struct {
	cpu time.Duration
	// peak is the most memory that was resident, in bytes: the sum of each process' most.
	peak int64
}

// tick is the unit of CPU times in /proc: USER_HZ, which is 100 on all platforms of Go.
const tick = 10 * time.Millisecond

// usageOf adds up what the selected processes have used. Children that have ended count for
// those that waited for them.
func usageOf(selects func(procfs.ProcStat) bool) (usage, error) {
	processes, err := procfs.AllProcs()
	if err != nil {
		return usage{}, fmt.Errorf("listing processes: %w", err)
	}
	var sum usage
	for _, process := range processes {
		stat, err := process.Stat()
		if err != nil || !selects(stat) {
			continue // it has ended, or is another
		}
		sum.cpu += tick * time.Duration(int(stat.UTime)+int(stat.STime)+stat.CUTime+stat.CSTime)
		if status, err := process.NewStatus(); err == nil {
			sum.peak += int64(status.VmHWM)
		}
	}
	return sum, nil
}
