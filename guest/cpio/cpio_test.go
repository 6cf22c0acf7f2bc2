package cpio

import (
	"bytes"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// read is a reader of newc archives, by the format's description alone.
func read(t *testing.T, archive []byte) []File {
	t.Helper()
	var files []File
	at := 0
	field := func(number int) int {
		begin := at + 6 + 8*number
		value, err := strconv.ParseUint(string(archive[begin:begin+8]), 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		return int(value)
	}
	align := func(n int) int { return (n + 3) / 4 * 4 }
	for {
		if string(archive[at:at+6]) != "070701" {
			t.Fatalf("no header at %d", at)
		}
		size, nameSize := field(6), field(11)
		name := string(archive[at+110 : at+110+nameSize-1])
		content := align(at + 110 + nameSize)
		if name == "TRAILER!!!" {
			if rest := archive[content:]; len(rest) != 0 {
				t.Errorf("%d bytes follow the trailer", len(rest))
			}
			return files
		}
		files = append(files, File{
			Path: name, Mode: uint32(field(1)), Device: [2]uint32{uint32(field(9)), uint32(field(10))},
			Content: bytes.Clone(archive[content : content+size]),
		})
		at = align(content + size)
	}
}

func TestWrite(t *testing.T) {
	in := []File{
		{Path: "dev", Mode: Folder | 0o755},
		{Path: "dev/console", Mode: Character | 0o600, Device: [2]uint32{5, 1}},
		{Path: "init", Mode: Regular | 0o755, Content: []byte("program")},
		{Path: "a/b/c.ko", Mode: Regular | 0o644, Content: []byte("12345678")},
		{Path: "a/d", Mode: Regular | 0o644},
	}
	var first, second bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		if err := Write(out, in); err != nil {
			t.Fatal(err)
		}
	}
	want := []File{in[0], in[1], in[2], {Path: "a", Mode: folderMode}, {Path: "a/b", Mode: folderMode}, in[3], in[4]}
	if diff := cmp.Diff(want, read(t, first.Bytes()), cmp.Transformer("text", func(b []byte) string { return string(b) })); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the same files gave different archives")
	}
}
