package image

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"testing"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/test/support/blockdev"
)

// garbage writes data after the mark that an earlier attempt may have left on a device.
func garbage(t *testing.T, device string) {
	t.Helper()
	draft, err := disk.Disk{Path: device}.Draft(t.Context())
	must(t, err)
	noise := make([]byte, 3*mib)
	for i := range noise {
		noise[i] = 0xab
	}
	_, err = draft.WriteAt(noise, 0)
	must(t, err)
	draft.Discard()
}

func TestDevice_HoldsImage(t *testing.T) {
	content := diskContent()
	small := content[:512] // not more than what is written last
	for name, test := range map[string]struct{ served, want []byte }{
		"raw":          {content, content},
		"gzip":         {compressed(t, toGzip, content), content},
		"qcow2":        {qcow2(t, content), content},
		"small qcow2":  {qcow2(t, small), small},
		"exact":        {padded(content, 5*mib), content},
		"exact, qcow2": {qcow2(t, padded(content, 5*mib)), content},
	} {
		t.Run(name, func(t *testing.T) {
			_, device := blockdev.New(t, 5*mib)
			garbage(t, device)
			scratch := t.TempDir()
			source := Source{URL: serve(t, test.served), Checksum: sum(test.served)}
			must(t, WriteDisk(t.Context(), source, Target{Path: device, Bytes: 5 * mib, Scratch: scratch}, noRetries))
			wantContent(t, device, padded(test.want, 5*mib))
			wantFiles(t, scratch)
		})
	}
}

// An incomplete or wrong image never turns a device into a disk. The next attempt does.
func TestDevice_IsDiskOnlyWhenComplete(t *testing.T) {
	content := diskContent()
	for name, test := range map[string]struct {
		served  []byte
		options Options
		sum     string
	}{
		"truncated":         {served: nil, options: noRetries},
		"wrong checksum":    {served: content, options: noRetries, sum: sum([]byte("other"))},
		"wrong, qcow2":      {served: qcow2(t, content), options: noRetries, sum: sum([]byte("other"))},
		"refused":           {served: content, options: Options{Access: local, RetryTimeout: -1, Check: func(io.ReaderAt) string { return "the content is bad" }}},
		"larger":            {served: padded(content, 9*mib), options: noRetries},
		"larger, qcow2":     {served: qcow2(t, padded(content, 9*mib)), options: noRetries},
		"larger, unlimited": {served: compressed(t, toGzip, padded(content, 9*mib)), options: noRetries},
	} {
		t.Run(name, func(t *testing.T) {
			_, device := blockdev.New(t, 5*mib)
			url := serve(t, test.served)
			if test.served == nil {
				url = serveBy(t, func(w http.ResponseWriter, _ *http.Request) { cut(w, content[:2*mib], "99999999") })
			}
			target := Target{Path: device, Scratch: t.TempDir(), Bytes: 5 * mib}
			if err := WriteDisk(t.Context(), Source{URL: url, Checksum: test.sum}, target, test.options); err == nil {
				t.Fatal("no error")
			}
			if got, err := (disk.Disk{Path: device}).Content(); err != nil || got != disk.Begun {
				t.Errorf("Content() = %s, %v", got, err)
			}
			must(t, WriteDisk(t.Context(), Source{URL: serve(t, content)}, target, noRetries))
			wantContent(t, device, padded(content, 5*mib))
			wantFiles(t, target.Scratch)
		})
	}
}

func TestDevice_CheckSeesStart(t *testing.T) {
	_, device := blockdev.New(t, 5*mib)
	content, seen := diskContent(), make([]byte, 600)
	options := Options{Access: local, RetryTimeout: -1, Check: func(from io.ReaderAt) string {
		_, err := from.ReadAt(seen, 100)
		must(t, err)
		return ""
	}}
	must(t, WriteDisk(t.Context(), Source{URL: serve(t, content)}, Target{Path: device, Scratch: t.TempDir()}, options))
	if string(seen) != string(content[100:700]) {
		t.Error("the check did not read the image")
	}
}

func TestDevice_IsNeverOverwritten(t *testing.T) {
	_, device := blockdev.New(t, 5*mib)
	must(t, os.WriteFile(device, []byte("a disk"), 0o600))
	err := WriteDisk(t.Context(), Source{URL: serve(t, diskContent())}, Target{Path: device, Scratch: t.TempDir()}, noRetries)
	if !errors.Is(err, fs.ErrExist) {
		t.Errorf("error = %v, want fs.ErrExist", err)
	}
	wantContent(t, device, padded([]byte("a disk"), 5*mib))
}

func TestDevice_TooSmallIsRejected(t *testing.T) {
	_, device := blockdev.New(t, 5*mib)
	target := Target{Path: device, Scratch: t.TempDir(), Bytes: 6 * mib}
	if err := WriteDisk(t.Context(), Source{URL: serve(t, diskContent())}, target, noRetries); !errors.Is(err, disk.ErrTooSmall) {
		t.Errorf("error = %v, want ErrTooSmall", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	target.Bytes = 0
	if err := WriteDisk(ctx, Source{URL: serve(t, diskContent())}, target, noRetries); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want context.Canceled", err)
	}
}
