package hypervisor_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// dataDisks adds a blank data disk and one with an image to the VM. It returns a function that returns the file of
// a disk.
func (w *fixture) dataDisks() (at func(name string) string) {
	w.config.Spec.DataDisks = []*vmpb.DataDisk{
		{Name: "logs", Path: "/data/logs/disk.img", Bytes: 1 << 20},
		{Name: "db", Path: "/data/db/disk.img", Bytes: 2 << 20, InitialImage: &vmpb.InitialImage{Url: "http://images/db.raw"}},
	}
	paths := hypervisor.PathsFor(w.config.Spec, filepath.Dir(w.config.Paths.Run))
	w.config.Paths.DataDisks = paths.DataDisks
	for _, path := range paths.DataDisks {
		must(w.t, os.MkdirAll(filepath.Dir(path), 0o700))
	}
	return func(name string) string { return paths.DataDisks[name] }
}

// exist marks the VM's data disks as complete.
func (w *fixture) exist() {
	for _, data := range w.config.Spec.GetDataDisks() {
		data.Exists = true
	}
}

func TestDataDisk_IsCreatedAndGrows(t *testing.T) {
	withFixture(t, func(w *fixture) {
		at := w.dataDisks()
		p := w.start()
		p.wantAlive()
		var serials []string
		for _, data := range w.machine().Config.Disks.Data {
			serials = append(serials, data.Serial+" "+data.Path)
		}
		if diff := gocmp.Diff([]string{"logs " + at("logs"), "db " + at("db")}, serials); diff != "" {
			t.Errorf("data disks of the guest (-want +got):\n%s", diff)
		}
		content, err := os.ReadFile(at("db"))
		must(t, err)
		if !strings.HasPrefix(string(content), imageContent) || len(content) != 2<<20 {
			t.Errorf("the disk with an image has %d bytes and starts with %q", len(content), content[:20])
		}
		reports := w.controller.Reports()
		last := reports[len(reports)-1]
		if diff := gocmp.Diff("root 1048576, logs 1048576, db 2097152", sizes(last)); diff != "" || last.GetCanMigrate() {
			t.Errorf("reported disks, with migration %v (-want +got):\n%s", last.GetCanMigrate(), diff)
		}
		p.term()
		p.wantEnd(vmpb.EndStopped)

		// A disk with a larger requested size grows and keeps its content.
		w.exist()
		w.config.Spec.DataDisks[1].Bytes = 3 << 20
		must(t, os.WriteFile(at("logs"), []byte("data"), 0o600))
		p = w.start()
		p.wantAlive()
		if info, err := os.Stat(at("db")); err != nil || info.Size() != 3<<20 || w.images.written != 1 {
			t.Errorf("%v, %v; %d images written", info.Size(), err, w.images.written)
		}
		if content, err := os.ReadFile(at("logs")); err != nil || !strings.HasPrefix(string(content), "data") {
			t.Errorf("the disk starts with %q, %v", content[:4], err)
		}

		// A disk also grows while the guest runs, but it never shrinks.
		w.controller.Respond(&vmpb.RunLeaseUpdate{Status: vmpb.RunLeaseUpdate_STATUS_OK, Grow: []*vmpb.DiskSize{
			{Bytes: 4 << 20}, {Name: "logs", Bytes: 5 << 20}, {Name: "db", Bytes: 1 << 20}, {Name: "other", Bytes: 9 << 20},
		}})
		pass(time.Minute)
		reports = w.controller.Reports()
		if diff := gocmp.Diff("root 4194304, logs 5242880, db 3145728", sizes(reports[len(reports)-1])); diff != "" {
			t.Errorf("reported disks (-want +got):\n%s", diff)
		}
	})
}

func sizes(report *vmpb.ReportStateRequest) string {
	var texts []string
	for _, size := range report.GetDisks() {
		texts = append(texts, fmt.Sprintf("%s %d", cmp.Or(size.GetName(), "root"), size.GetBytes()))
	}
	return strings.Join(texts, ", ")
}

// A data disk that has been complete is never created again, not even after a restart of the process in its Pod.
func TestDataDisk_IsNeverCreatedAgain(t *testing.T) {
	for name, restart := range map[string]bool{"in another pod": false, "in the same": true} {
		t.Run(name, func(t *testing.T) {
			withFixture(t, func(w *fixture) {
				at := w.dataDisks()
				p := w.start()
				p.term()
				p.wantEnd(vmpb.EndStopped)
				must(t, os.Remove(at("logs")))
				if !restart {
					w.exist()
					must(t, os.RemoveAll(w.config.Paths.Run))
				}
				end := w.start().wantEnd(vmpb.EndDiskLost)
				if !strings.Contains(end.Message, "logs") {
					t.Errorf("the message does not name the disk: %s", end.Message)
				}
				if _, err := os.Stat(at("logs")); err == nil {
					t.Error("the disk was created again")
				}
			})
		})
	}
}

// Another process holds one of the disks. The guest does not start, and the other disks stay unlocked.
func TestDataDisk_LockedDiskStopsStart(t *testing.T) {
	withFixture(t, func(w *fixture) {
		at := w.dataDisks()
		other, err := disk.Acquire(at("db"))
		must(t, err)
		p := w.start()
		root, err := disk.Acquire(w.config.Paths.RootDisk)
		must(t, err)
		must(t, root.Release())
		end := p.wantEnd(vmpb.EndDiskLocked)
		if !strings.Contains(end.Message, "db") || len(w.machines.Started()) != 0 {
			t.Errorf("started %d machines, message = %q", len(w.machines.Started()), end.Message)
		}
		must(t, other.Release())
		w.start().wantAlive()
	})
}

func TestDataDisk_FailureIsReported(t *testing.T) {
	disk := func(change func(*vmpb.DataDisk)) []*vmpb.DataDisk {
		d := &vmpb.DataDisk{Name: "logs", Path: "/data/logs/disk.img", Bytes: 1 << 20}
		change(d)
		return []*vmpb.DataDisk{d}
	}
	same := disk(func(*vmpb.DataDisk) {})
	for name, test := range map[string]struct {
		disks []*vmpb.DataDisk
		field string
	}{
		"no name":                  {disk(func(d *vmpb.DataDisk) { d.Name = "" }), "data_disks[0].name"},
		"a path as name":           {disk(func(d *vmpb.DataDisk) { d.Name = "../a" }), "data_disks[0].name"},
		"a long name":              {disk(func(d *vmpb.DataDisk) { d.Name = strings.Repeat("a", 21) }), "data_disks[0].name"},
		"duplicate name":           {append(disk(func(*vmpb.DataDisk) {}), same...), "data_disks[1].name"},
		"no path":                  {disk(func(d *vmpb.DataDisk) { d.Path = "" }), "data_disks[0].path"},
		"a path that is not clean": {disk(func(d *vmpb.DataDisk) { d.Path = "/a/../b" }), "data_disks[0].path"},
		"too large":                {disk(func(d *vmpb.DataDisk) { d.Bytes = 1<<52 + 1 }), "data_disks[0].bytes"},
		"no image":                 {disk(func(d *vmpb.DataDisk) { d.InitialImage = &vmpb.InitialImage{} }), "data_disks[0].initial_image.url"},
		"a hundred":                {make([]*vmpb.DataDisk, 100), "data_disks"},
	} {
		t.Run(name, func(t *testing.T) {
			withFixture(t, func(w *fixture) {
				w.config.Spec.DataDisks = test.disks
				end := w.start().wantEnd(vmpb.EndInvalidSpec)
				if !strings.HasPrefix(end.Message, test.field+": ") {
					t.Errorf("message = %q, want one about %s", end.Message, test.field)
				}
			})
		})
	}
}
