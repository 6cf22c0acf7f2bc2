package directory

import (
	"os"
	"testing"

	"github.com/millwright-dev/millwright/test/support/smallfs"
)

// TestFullDisk checks that a full disk affects no existing file: its content stays, and no unfinished file
// remains next to it.
func TestFullDisk(t *testing.T) {
	t.Attr("fault", "The disk is full while certificates, keys, kubeconfigs, process records, or files of Pod volumes are written")
	for name, write := range map[string]func(fs *smallfs.FS, content []byte) error{
		"WriteFile": func(fs *smallfs.FS, content []byte) error { return WriteFile(fs.Path("dir", "x"), content) },
		"WriteFileIn": func(fs *smallfs.FS, content []byte) error {
			root, err := os.OpenRoot(fs.Dir)
			if err != nil {
				return err
			}
			defer root.Close()
			return WriteFileIn(root, "dir/x", content)
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := smallfs.New(t)
			old, larger := []byte("old"), make([]byte, 3*os.Getpagesize())
			if err := write(fs, old); err != nil {
				t.Fatal(err)
			}
			for pages := range 3 {
				fs.Fill(pages)
				smallfs.WantNoSpace(t, write(fs, larger), fs.Path("dir", "x"))
				fs.WantFiles(fs.Path("dir"), "x")
				if content, err := os.ReadFile(fs.Path("dir", "x")); string(content) != string(old) {
					t.Errorf("the file has %d bytes (%v)", len(content), err)
				}
				fs.FreeSpace()
			}
			if err := write(fs, larger); err != nil {
				t.Errorf("with free space again: %v", err)
			}
			fs.WantFiles(fs.Path("dir"), "x")
		})
	}
	t.Attr("outcome", "The write fails with an error that names the file; the file is unchanged, and no temporary file remains; the next write succeeds once there is free space")
}
