package main

import (
	"os"
	"testing"

	"github.com/millwright-dev/millwright/test/support/smallfs"
)

// TestResult_IsKeptOnFullDisk: a full disk does not destroy an earlier result.
func TestResult_IsKeptOnFullDisk(t *testing.T) {
	t.Attr("fault", "The disk is full while the benchmark writes its result")
	fs := smallfs.New(t)
	path := fs.Path("result.json")
	if err := (&result{Machines: 1}).write(path); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	fs.Fill(0)
	smallfs.WantNoSpace(t, (&result{Machines: 2}).write(path), path)
	if after, err := os.ReadFile(path); string(after) != string(before) {
		t.Errorf("got file content %q (%v)", after, err)
	}
	fs.WantFiles(fs.Dir, "result.json")
	fs.FreeSpace()
	if err := (&result{Machines: 2}).write(path); err != nil {
		t.Errorf("with free space: got error %v", err)
	}
	t.Attr("outcome", "The write fails with an error that names the file, and the earlier result is kept; the next write succeeds once there is free space")
}
