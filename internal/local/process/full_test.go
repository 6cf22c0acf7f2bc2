package process

import (
	"os"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/test/support/smallfs"
)

// TestFullDisk checks that no process is started on a full disk, because its record could not be written and it
// would never be found again.
func TestFullDisk(t *testing.T) {
	t.Attr("fault", "The disk is full while a component or a hypervisor is started and recorded")
	fs := smallfs.New(t)
	record, log := fs.Path("child.json"), fs.Path("log")
	command := Command{Path: os.Args[0], Env: []string{role + "=exit"}, Log: log}
	fs.Fill(0)
	_, err := Start(record, command, time.Now())
	smallfs.WantNoSpace(t, err, record)
	if running, err := Running(record); running || err != nil {
		t.Errorf("it runs: %t (%v)", running, err)
	}
	if _, err := os.Stat(record); !os.IsNotExist(err) {
		t.Errorf("there is a record of a process that was not started (%v)", err)
	}
	fs.FreeSpace()
	started, err := Start(record, command, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	<-started.Ended()
	t.Attr("outcome", "The start fails with an error that names the record, and no process runs; the next start succeeds once there is free space")
}

// TestProcess_DiskFullAfterStart checks that a process runs if there is space for its record only, and that a later
// parent finds it.
func TestProcess_DiskFullAfterStart(t *testing.T) {
	t.Attr("fault", "The disk is full while the process ID of a component or a hypervisor is recorded")
	fs := smallfs.New(t)
	record := fs.Path("child.json")
	fs.Fill(1)
	started, err := Start(record, Command{Path: os.Args[0], Dir: fs.Dir, Env: []string{role + "=wait"}, Log: fs.Path("log")}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if r, err := readRecord(record); r.PID != 0 || err != nil {
		t.Errorf("the record has the process ID %d (%v): the disk was not full", r.PID, err)
	}
	found, err := Open(record) // by a later parent, while the disk is full
	if err != nil {
		t.Fatal(err)
	}
	if found.PID() != started.PID() {
		t.Errorf("found process %d, want %d", found.PID(), started.PID())
	}
	found.Kill()
	awaitExit(t, started)
	awaitExit(t, found)
	t.Attr("outcome", "The process runs; the next parent finds it by its lock, even while the disk is full")
}
