package sim_test

import (
	"fmt"
	"testing"

	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/smallfs"
)

// A cloud on a full disk creates no VM and returns the reason. It works again when the disk has free space.
func TestCloud_RecoversFromFullDisk(t *testing.T) {
	t.Attr("fault", "The disk is full while the simulated provider writes its journal")
	fs := smallfs.New(t)
	cloud := openCloud(t, fs.Dir)
	w := newTestDriver(t, sim.Config{Cloud: cloud}, nil)
	w.mustCreate("before")
	fs.Fill(1)
	made := 1
	var err error
	for ; err == nil && made < 100; made++ {
		_, err = w.create(fmt.Sprintf("m-%d", made))
	}
	made--
	smallfs.WantNoSpace(t, err, fs.Path("journal"))
	for _, handle := range []*sim.Cloud{cloud, openCloud(t, fs.Dir)} {
		// There may have been space for the VM but not for the call's journal entry. Then the next call finds the
		// VM.
		if vms, err := handle.VMs(); len(vms) != made && len(vms) != made+1 || err != nil {
			t.Errorf("got %d VMs (%v), want %d or one more", len(vms), err, made)
		}
	}
	fs.FreeSpace()
	w.mustCreate(fmt.Sprintf("m-%d", made))
	w.mustRemove("before", "")
	for _, handle := range []*sim.Cloud{cloud, openCloud(t, fs.Dir)} {
		if vms, err := handle.VMs(); len(vms) != made || err != nil {
			t.Errorf("with free space: got %d VMs (%v), want %d", len(vms), err, made)
		}
	}
	t.Attr("outcome", "Creation fails with an error that names the file, and creates either no VM or one that the next creation finds; creation succeeds once there is free space")
}
