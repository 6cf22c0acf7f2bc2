package hypervisor_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// Budgets of a start: the time until the guest's first output, compared with a bare QEMU with the same download
// and copy; the hypervisor's own part of that time if the disk exists; and the hypervisor's memory in addition to
// QEMU's.
const (
	startFactor  = 1.3
	startMore    = time.Second
	startOwn     = 300 * time.Millisecond
	memoryBudget = 40 << 20
)

// TestStart_AgainstBareQEMU starts guests alternately in hypervisors and in bare QEMUs, from a downloaded image and
// from an existing disk, and compares the medians.
func TestStart_AgainstBareQEMU(t *testing.T) {
	tier.All(t)
	const MiB = 1 << 20
	count, measured := pairs(t)
	data := uint64(256 * MiB)
	if !measured {
		data = 4 * MiB
	}
	images := &imageServer{content: bootImage(t, data)}
	server := httptest.NewServer(images)
	t.Cleanup(server.Close)
	for _, from := range []struct {
		name, url string
		factor    float64
		more      time.Duration
	}{{"fetched", server.URL + "/image", startFactor, startMore}, {"there", "", 1, startOwn}} {
		t.Run(from.name, func(t *testing.T) {
			var ours, alone []time.Duration
			var memory uint64
			for range count {
				t.Run("bare", func(t *testing.T) { alone = append(alone, startedBare(t, from.url, 2*data, images.content)) })
				t.Run("ours", func(t *testing.T) {
					took, bytes := startedOurs(t, from.url, 2*data, images.content)
					ours, memory = append(ours, took), max(memory, bytes)
				})
			}
			if len(ours) < count || len(alone) < count || !measured {
				return
			}
			compare(t, "start", ours, alone, from.factor, from.more)
			t.Logf("the hypervisor uses %d MiB in addition to QEMU; budget %d MiB", memory>>20, memoryBudget>>20)
			if memory > memoryBudget {
				t.Error("the memory exceeds its budget")
			}
		})
	}
}

// bootImage returns a disk that boots scribe, with the given amount of data after the part that scribe uses.
func bootImage(t *testing.T, data uint64) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", "scribe.img"))
	must(t, err)
	image := make([]byte, scribeDisk+data)
	copy(image, content)
	_, _ = rand.Read(image[scribeDisk:])
	return image
}

type imageServer struct{ content []byte }

func (s *imageServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	http.ServeContent(w, r, "image", time.Time{}, bytes.NewReader(s.content))
}

// startedBare returns how long it takes until the first output of a guest in a bare QEMU. The image is copied to a
// new disk.
func startedBare(t *testing.T, url string, size uint64, content []byte) time.Duration {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	if url == "" {
		must(t, os.WriteFile(path, content, 0o600))
	}
	begun := time.Now()
	if url != "" {
		response, err := http.Get(url)
		must(t, err)
		file, err := os.Create(path)
		must(t, err)
		_, err = io.Copy(file, response.Body)
		must(t, err)
		must(t, response.Body.Close())
		must(t, file.Sync())
		must(t, file.Close())
	}
	must(t, os.Truncate(path, int64(size)))
	b := startBare(t, path, 256<<20, false)
	b.do("cont", nil)
	b.console.begins(t)
	first, _ := b.console.times()
	b.kill()
	return first.Sub(begun)
}

// startedOurs is like startedBare for a hypervisor process. It also returns the memory of the process without
// QEMU's.
func startedOurs(t *testing.T, url string, size uint64, content []byte) (took time.Duration, memory uint64) {
	t.Helper()
	h := newTestCluster(t)
	h.data, h.size, h.memory, h.image = nil, size, 256<<20, url
	mode := vmpb.VMSpec_SM_RUN
	if url != "" {
		mode = vmpb.VMSpec_SM_PREPARE_IMAGE
	}
	var begun time.Time
	m := h.start("web-1", mode, func(m *member) {
		if url == "" {
			must(t, os.WriteFile(m.disk, content, 0o600))
			must(t, os.Truncate(m.disk, int64(size)))
		}
		begun = time.Now()
	})
	console := m.counts()
	if _, found := console.line(); !found {
		t.Fatal("the guest did not print anything")
	}
	return console.at.Sub(begun), proportional(t, m.process.PID())
}

// proportional returns the memory of a process in bytes. Shared pages count proportionally (PSS).
func proportional(t *testing.T, pid int) uint64 {
	t.Helper()
	rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	must(t, err)
	for line := range strings.Lines(string(rollup)) {
		var kib uint64
		if _, err := fmt.Sscanf(line, "Pss: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	t.Fatalf("process %d has no Pss", pid)
	return 0
}
