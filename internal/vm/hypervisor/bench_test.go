package hypervisor_test

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/service"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// moved contains the durations of migrations of one kind.
type moved struct{ totals, gaps []time.Duration }

func (m *moved) add(total, gap time.Duration) {
	m.totals, m.gaps = append(m.totals, total), append(m.gaps, gap)
}

func median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2].Round(time.Millisecond)
}

// pairs returns how many migrations of each kind to compare: as many as "make bench-vm" requests, or only one,
// which just has to succeed.
func pairs(t *testing.T) (count int, measured bool) {
	t.Helper()
	text := os.Getenv("MILLWRIGHT_PAIRS")
	if text == "" {
		return 1, false
	}
	count, err := strconv.Atoi(text)
	if err != nil || count < 1 {
		t.Fatalf("MILLWRIGHT_PAIRS: %q is not a number of pairs", text)
	}
	return count, true
}

// Budgets of a migration. Its total duration is compared with that of a bare QEMU with TLS, because the traffic
// must be encrypted. Its gap is compared with that of a bare QEMU without TLS.
const (
	totalFactor = 1.2
	gapFactor   = 1.2
	gapMore     = 50 * time.Millisecond
)

// TestMigration_AgainstBareQEMU moves guests alternately between hypervisors and between two bare QEMUs, and compares the
// medians. Both durations start with the request and include the start of the receiving QEMU. The guest writes to
// its disk all the time, and a quarter of the disk contains data.
func TestMigration_AgainstBareQEMU(t *testing.T) {
	tier.All(t)
	const MiB = 1 << 20
	count, measured := pairs(t)
	sizes := []struct {
		name       string
		size, data uint64
	}{{"256 MiB", 256 * MiB, 64 * MiB}, {"2 GiB", 2048 * MiB, 512 * MiB}}
	if !measured {
		sizes = sizes[:1]
		sizes[0].name, sizes[0].size, sizes[0].data = "16 MiB", 16*MiB, 4*MiB
	}
	for _, disk := range sizes {
		t.Run(disk.name, func(t *testing.T) {
			ours, alone, secured := &moved{}, &moved{}, &moved{}
			bare := func(t *testing.T, certificates string) (total, gap time.Duration) {
				path := filepath.Join(t.TempDir(), "source")
				bootDisk(t, "scribe", path, disk.size)
				fill(t, path, disk.data)
				return moveBare(t, path, disk.size, 256*MiB, certificates)
			}
			for range count {
				t.Run("bare", func(t *testing.T) { alone.add(bare(t, "")) })
				t.Run("bare with TLS", func(t *testing.T) { secured.add(bare(t, bareCertificates(t))) })
				t.Run("ours", func(t *testing.T) { ours.add(moveOurs(t, disk.size, disk.data, 256*MiB)) })
			}
			if len(ours.gaps) < count || len(alone.gaps) < count || !measured {
				return
			}
			t.Logf("total without TLS: bare QEMU %v: %.2f times", median(alone.totals), float64(median(ours.totals))/float64(median(alone.totals)))
			compare(t, "total", ours.totals, secured.totals, totalFactor, 0)
			compare(t, "gap", ours.gaps, alone.gaps, gapFactor, gapMore)
		})
	}
}

// compare prints the medians and fails the test if a hypervisor exceeds its budget.
func compare(t *testing.T, what string, ours, alone []time.Duration, factor float64, more time.Duration) {
	t.Helper()
	us, bare := median(ours), median(alone)
	budget := (time.Duration(factor*float64(bare)) + more).Round(time.Millisecond)
	t.Logf("%s: %v, bare QEMU %v: %.2f times; budget %v; all: %v and %v", what, us, bare, float64(us)/float64(bare), budget, ours, alone)
	if us > budget {
		t.Errorf("the %s exceeds its budget", what)
	}
}

// fill writes the given number of incompressible bytes after the part of the disk that scribe uses.
func fill(t *testing.T, path string, bytes uint64) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	defer func() { must(t, file.Close()) }()
	block := make([]byte, 1<<20)
	_, _ = rand.Read(block)
	for at := uint64(4 << 20); at < bytes+4<<20; at += uint64(len(block)) {
		_, err := file.WriteAt(block, int64(at))
		must(t, err)
	}
}

// moveOurs is like moveBare, but between hypervisors.
func moveOurs(t *testing.T, size, data, memory uint64) (total, gap time.Duration) {
	t.Helper()
	h := newTestCluster(t)
	h.data = nil
	h.size, h.memory = size, memory
	source := h.sourceWith(data)
	here := source.counts()
	here.numbers(10)
	target := h.target("web-2")
	h.awaitIncoming(target)
	h.names(func(int) *member { return target })
	outputs := target.firstOutputs()
	begun := time.Now()
	h.controller.Change(func(a *authority) { a.migrate = true })
	here.toTheEnd()
	first, ok := <-outputs
	if !ok {
		t.Fatal("the guest did not print anything after the migration")
	}
	total, gap = first.Sub(begun), first.Sub(here.at)
	source.wantEnd(vmpb.EndTerminated)
	target.kill()
	return total, gap
}

// firstOutputs receives the time when a member's guest writes output. It requests the console repeatedly, because
// the console does not exist at first.
func (m *member) firstOutputs() <-chan time.Time {
	m.t.Helper()
	outputs := make(chan time.Time, 1)
	go func() {
		defer close(outputs)
		ctx, cancel := context.WithTimeout(m.t.Context(), waitTimeout)
		defer cancel()
		go func() {
			<-m.process.Ended()
			cancel()
		}()
		for ctx.Err() == nil {
			if at := m.firstOutput(ctx); !at.IsZero() {
				outputs <- at
				return
			}
			select {
			case <-time.After(5 * time.Millisecond): // nothing announces the console
			case <-ctx.Done():
			}
		}
	}()
	return outputs
}

// firstOutput returns when the guest wrote its first output, or the zero time if it has no console yet.
func (m *member) firstOutput(ctx context.Context) time.Time {
	conn, err := service.DialSocket(filepath.Join(m.root, vmpb.SocketPath))
	if err != nil {
		return time.Time{}
	}
	defer func() { _ = conn.Close() }()
	stream, err := vmpb.NewOOBManagementClient(conn).Console(ctx, grpc.WaitForReady(true))
	if err != nil {
		return time.Time{}
	}
	if _, err = stream.Recv(); err != nil {
		return time.Time{}
	}
	return time.Now()
}

// sourceWith is like source, with more data on the disk.
func (h *testCluster) sourceWith(data uint64) *member {
	h.t.Helper()
	return h.start("web-1", vmpb.VMSpec_SM_RUN, func(m *member) {
		bootDisk(h.t, "scribe", m.disk, h.size)
		fill(h.t, m.disk, data)
	})
}

// awaitIncoming waits until a target has reported its address.
func (h *testCluster) awaitIncoming(target *member) {
	h.t.Helper()
	_, err := h.controller.AwaitReport(h.t.Context(), func(report *vmpb.ReportStateRequest) bool {
		return report.GetUs().GetPodName() == target.pod && report.GetState() == vmpb.ReportStateRequest_STATE_INCOMING
	})
	must(h.t, err)
}
