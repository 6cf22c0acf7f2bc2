package process

import (
	"os"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/test/smallfs"
)

// On a full disk no process is started that nobody would find again.
func TestFullDisk(t *testing.T) {
	t.Attr("fault", "disk full: a component or a hypervisor is started, which is recorded, and prints into its log")
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
	fs.MakeRoom()
	started, err := Start(record, command, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	<-started.Ended()
	t.Attr("outcome", "an error that names the record, and no process; the next start succeeds")
}
