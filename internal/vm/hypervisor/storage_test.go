package hypervisor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/smallfs"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// writerDone is what the guest "writer" prints after it has written 3 MiB and a dot for each of 96 writes.
const writerDone = "done\n"

// awaitReport waits for a report after the given number of earlier reports.
func (r *real) awaitReport(before int, want string) {
	r.t.Helper()
	_, err := r.controller.AwaitLaterReport(r.bounded(), before, func(report *vmpb.ReportStateRequest) bool {
		return report.GetState().String()+" "+report.GetCause().String() == want
	})
	if err != nil {
		r.t.Fatalf("no report %s: %v", want, err)
	}
}

// A guest that fills its storage is stopped, which is reported, and continues when there is free space.
func TestGuest_WaitsForFreeSpace(t *testing.T) {
	tier.All(t)
	t.Parallel()
	disks := smallfs.NewSize(t, 4<<20)
	disks.Fill(2 << 20 / os.Getpagesize())
	r := newReal(t, "writer")
	content, err := os.ReadFile(r.config.Paths.RootDisk)
	must(t, err)
	r.config.Paths.RootDisk = disks.Path("disk.img")
	must(t, os.WriteFile(r.config.Paths.RootDisk, content, 0o600))
	r.config.Spec.RootDiskBytes = 8 << 20
	r.config.Timing.Resume, r.config.Timing.Settle = 100*time.Millisecond, 500*time.Millisecond
	r.start()
	process := r.process()
	r.awaitReport(0, "STATE_PAUSED CAUSE_NO_SPACE")
	full := len(r.controller.Reports())

	// The guest may boot again, but it finds no free space.
	conn := r.dial()
	_, err = vmpb.NewOOBManagementClient(conn).Reset(r.bounded(), &vmpb.ResetRequest{})
	must(t, err)
	console := r.console(conn)
	console.until(counterBanner)
	console.until(counterBanner)
	r.awaitReport(full, "STATE_PAUSED CAUSE_NO_SPACE")
	full = len(r.controller.Reports())

	disks.FreeSpace()
	console.until(writerDone)
	r.awaitReport(full, "STATE_RUNNING CAUSE_UNKNOWN")
	if state, err := process.State(r.bounded()); err != nil || state.Status != running {
		t.Errorf("state = %+v, %v", state, err)
	}
}

// A command of another client of QEMU is reported.
func TestGuest_StopByOtherClientIsReported(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newReal(t, "counter").start()
	process := r.process()
	r.awaitReport(0, "STATE_RUNNING CAUSE_UNKNOWN")
	must(t, process.Stop(r.bounded()))
	r.awaitReport(0, "STATE_PAUSED CAUSE_UNKNOWN")
	stopped := len(r.controller.Reports())
	must(t, process.Cont(r.bounded()))
	r.awaitReport(stopped, "STATE_RUNNING CAUSE_UNKNOWN")
}

// hostile is a program that behaves like QEMU until the guest runs.
const hostile = `#!/bin/sh
echo '{"QMP":{}}' >&3
n=0
while read -r line; do
	n=$((n+1))
	case $n in
	2) result='{"status":"prelaunch"}' ;;
	4) result='{"status":"running"}' ;;
	*) result='{}' ;;
	esac
	echo "{\"return\":$result,\"id\":\"$n\"}" >&3
	[ $n = 4 ] && break
done <&3
%s
exec sleep 1000
`

// A QEMU that can no longer be controlled is killed.
func TestGuest_IsKilledWithoutMonitor(t *testing.T) {
	tier.All(t)
	for name, last := range map[string]string{
		"closed":                `exec 3>&-`,
		"line that is too long": `head -c 9000000 /dev/zero | tr '\\0' '[' >&3`,
		"nonsense":              `echo 'how do you do' >&3`,
		"response without ID":   `echo '{"return":{}}' >&3`,
	} {
		t.Run(name, func(t *testing.T) {
			r := newReal(t, "counter")
			program := filepath.Join(t.TempDir(), "qemu")
			must(t, os.WriteFile(program, fmt.Appendf(nil, hostile, last), 0o700))
			r.config.Machines = spying{hypervisor.QEMU{Program: program}, r.started}
			r.start()
			process := r.process()
			r.wantEnd(vmpb.EndQEMUFailed)
			if exit := process.Exit(); exit.Reason != qemu.HostKilled {
				t.Errorf("exit = %s", exit)
			}
		})
	}
}

// AwaitLaterReport must not accept an earlier report, even if something else is reported in the meantime.
func TestFakeController_AwaitLaterReportIgnoresOldReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &real{t: t, controller: newFakeController()}
		t.Cleanup(r.controller.Close)
		report := func(state vmpb.ReportStateRequest_State) {
			_, err := r.controller.ReportState(t.Context(), &vmpb.ReportStateRequest{Us: &vmpb.HypervisorID{RunId: 1}, State: state})
			must(t, err)
			synctest.Wait()
		}
		report(vmpb.ReportStateRequest_STATE_PAUSED)
		found := make(chan struct{})
		go func() {
			defer close(found)
			r.awaitReport(1, "STATE_PAUSED CAUSE_UNKNOWN")
		}()
		synctest.Wait() // it has checked the existing reports
		report(vmpb.ReportStateRequest_STATE_RUNNING)
		select {
		case <-found:
			t.Error("found the old report")
		default:
		}
		report(vmpb.ReportStateRequest_STATE_PAUSED)
		<-found
	})
}
