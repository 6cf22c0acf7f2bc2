// Package cpio changes when the archive that the kernel takes as its initial file
// system does.
//
// It writes the "newc" form, as described in Linux' driver-api/early-userspace
// documents. The same files give the same bytes: there are no times, owners or device
// numbers in them.
package cpio

import (
	"fmt"
	"io"
	"path"
	"slices"
)

// File is an entry of an archive. Folders that its path needs are made by [Write].
type File struct {
	// Path is relative and clean: "lib/modules/virtio.ko".
	Path string
	// Mode is type and permission bits as in stat(2): 0o100755 for a program.
	Mode uint32
	// Device is the major and minor number of a device node.
	Device [2]uint32
	// Content of a regular file.
	Content []byte
}

// Types of files, as in stat(2).
const (
	// Regular is the type bits of a regular file.
	Regular = 0o100000
	// Folder is the type bits of a folder.
	Folder = 0o040000
	// Character is the type bits of a character device.
	Character = 0o020000

	folderMode = Folder | 0o755
	trailer    = "TRAILER!!!"
)

// Write writes an archive of the files, in their order. An error is that of the
// writer.
func Write(w io.Writer, files []File) error {
	out := &archive{w: w}
	made := []string{"."}
	for _, file := range files {
		for _, folder := range missingFolders(made, file.Path) {
			out.add(File{Path: folder, Mode: folderMode})
			made = append(made, folder)
		}
		if file.Mode&Folder == Folder {
			made = append(made, file.Path)
		}
		out.add(file)
	}
	out.next = 0 // the trailer has no number
	out.add(File{Path: trailer})
	return out.err
}

// missingFolders lists the folders above a path that are not made yet, outermost
// first.
func missingFolders(made []string, name string) []string {
	var missing []string
	for folder := path.Dir(name); !slices.Contains(made, folder); folder = path.Dir(folder) {
		missing = append(missing, folder)
	}
	slices.Reverse(missing)
	return missing
}

// archive writes entries until the first error.
type archive struct {
	w    io.Writer
	next uint32 // number of the file before
	err  error
}

func (a *archive) add(file File) {
	number := a.next
	if file.Path != trailer {
		a.next++
		number = a.next
	}
	// magic, inode, mode, uid, gid, links, time, size, device, node, name, check
	a.write(fmt.Appendf(nil, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		number, file.Mode, 0, 0, 1, 0, len(file.Content), 0, 0,
		file.Device[0], file.Device[1], len(file.Path)+1, 0, file.Path))
	a.write(file.Content)
}

// write pads to the four bytes on which headers and contents begin.
func (a *archive) write(content []byte) {
	if a.err != nil {
		return
	}
	padding := -len(content) & 3
	if a.err == nil {
		_, a.err = a.w.Write(content)
	}
	// Headers begin on a boundary, so their own length decides the padding.
	if a.err == nil && padding > 0 {
		_, a.err = a.w.Write(make([]byte, padding))
	}
}
