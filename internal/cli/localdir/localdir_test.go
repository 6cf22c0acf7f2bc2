package localdir

import (
	"testing"

	"github.com/millwright-dev/millwright/test/support/smallfs"
)

// TestDirectory_KeepsDriverWhenDiskIsFull checks that the record of the driver survives a full disk.
func TestDirectory_KeepsDriverWhenDiskIsFull(t *testing.T) {
	t.Attr("fault", "The disk is full while \"millwright up\" records the driver of its directory")
	fs := smallfs.New(t)
	if err := SetDriver(fs.Dir, DriverSim); err != nil {
		t.Fatal(err)
	}
	fs.Fill(0)
	smallfs.WantNoSpace(t, SetDriver(fs.Dir, DriverSim), fs.Path("driver"))
	if driver, err := Driver(fs.Dir); driver != DriverSim || err != nil {
		t.Errorf("the directory's driver is %q (%v)", driver, err)
	}
	fs.WantFiles(fs.Dir, "driver")
	fs.FreeSpace()
	if err := SetDriver(fs.Dir, DriverVM); err != nil {
		t.Errorf("with free space again: %v", err)
	}
	if driver, err := Driver(fs.Dir); driver != DriverVM || err != nil {
		t.Errorf("the directory's driver is %q (%v), want %q", driver, err, DriverVM)
	}
	t.Attr("outcome", "The write fails with an error that names the file, and the recorded driver is unchanged; the next write succeeds once there is free space")
}
