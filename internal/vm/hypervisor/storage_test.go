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

// What the guest "writer" prints when it has written 3 MiB, after a dot for each of 96 writes.
const writerDone = "done\n"

// awaitReport waits for a report after the earlier ones.
func (r *real) awaitReport(before int, want string) {
	r.t.Helper()
	_, err := r.controller.AwaitLaterReport(r.bounded(), before, func(report *vmpb.ReportStateRequest) bool {
		return report.GetState().String()+" "+report.GetCause().String() == want
	})
	if err != nil {
		r.t.Fatalf("no report %s: %v", want, err)
	}
}

// A guest that fills its storage is stopped, which is reported, and it continues when there is free space.
func TestRealGuestWaitsForRoom(t *testing.T) {
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

	// It may boot again, but finds no free space.
	conn := r.dial()
	_, err = vmpb.NewOOBManagementClient(conn).Reset(r.bounded(), &vmpb.ResetRequest{})
	must(t, err)
	console := r.console(conn)
	console.until(counterBanner)
	console.until(counterBanner)
	r.awaitReport(full, "STATE_PAUSED CAUSE_NO_SPACE")
	full = len(r.controller.Reports())

	disks.MakeRoom()
	console.until(writerDone)
	r.awaitReport(full, "STATE_RUNNING CAUSE_UNKNOWN")
	if answer, err := process.State(r.bounded()); err != nil || answer.Status != running {
		t.Errorf("the machine is %+v, %v", answer, err)
	}
}

// What someone else tells QEMU is reported.
func TestRealGuestIsStoppedByAnother(t *testing.T) {
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
	2) answer='{"status":"prelaunch"}' ;;
	4) answer='{"status":"running"}' ;;
	*) answer='{}' ;;
	esac
	echo "{\"return\":$answer,\"id\":\"$n\"}" >&3
	[ $n = 4 ] && break
done <&3
%s
exec sleep 1000
`

// A QEMU that can no longer be controlled is killed.
func TestMachineLosesItsMonitor(t *testing.T) {
	tier.All(t)
	for name, last := range map[string]string{
		"closed":            `exec 3>&-`,
		"endless line":      `head -c 9000000 /dev/zero | tr '\\0' '[' >&3`,
		"nonsense":          `echo 'how do you do' >&3`,
		"response to no ID": `echo '{"return":{}}' >&3`,
	} {
		t.Run(name, func(t *testing.T) {
			r := newReal(t, "counter")
			program := filepath.Join(t.TempDir(), "qemu")
			must(t, os.WriteFile(program, fmt.Appendf(nil, hostile, last), 0o700))
			r.config.Machines = spying{hypervisor.QEMU{Program: program}, r.started}
			r.start()
			process := r.process()
			r.ends(vmpb.EndQEMUFailed)
			if exit := process.Exit(); exit.Reason != qemu.HostKilled {
				t.Errorf("the process ended with %s", exit)
			}
		})
	}
}

// A test does not accept an earlier report, even if something else is reported meanwhile.
func TestOldReportsAreNotAwaited(t *testing.T) {
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
		synctest.Wait() // it has seen what there is
		report(vmpb.ReportStateRequest_STATE_RUNNING)
		select {
		case <-found:
			t.Error("the old report was found")
		default:
		}
		report(vmpb.ReportStateRequest_STATE_PAUSED)
		<-found
	})
}
