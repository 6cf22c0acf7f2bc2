package hypervisor_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/service"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/freeport"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/smallfs"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// counting is what a client of a member's console receives from scribe.
type counting struct {
	t      *testing.T
	output <-chan output
	rest   string
	// last is the last number that was read, at is the time when it was read, and read is the count of numbers.
	last uint64
	read int
	at   time.Time
}

// output is what a guest wrote, and when it was received.
type output struct {
	text string
	at   time.Time
}

// receive receives from a console as fast as it sends, because slow readers are disconnected. It has enough space
// for the output of one minute.
func receive(stream grpc.BidiStreamingClient[vmpb.ConsoleIO, vmpb.ConsoleIO]) <-chan output {
	received := make(chan output, 1<<17)
	go func() {
		defer close(received)
		for {
			message, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case received <- output{string(message.GetData()), time.Now()}:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	return received
}

// counts connects to a member's console once the guest runs there.
func (m *member) counts() *counting {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.t.Context()), waitTimeout)
	m.t.Cleanup(cancel)
	path := filepath.Join(m.root, vmpb.SocketPath)
	for {
		conn, err := service.DialSocket(path)
		if err == nil {
			m.t.Cleanup(func() { _ = conn.Close() })
			stream, err := vmpb.NewOOBManagementClient(conn).Console(ctx, grpc.WaitForReady(true))
			must(m.t, err)
			if message, err := stream.Recv(); err == nil {
				return &counting{t: m.t, output: receive(stream), rest: string(message.GetData()), at: time.Now()}
			}
		}
		m.wantAlive()
		select {
		case <-time.After(10 * time.Millisecond): // the process creates its socket, or gets its guest
		case <-ctx.Done():
			m.t.Fatalf("%s does not have a guest", m.pod)
		}
	}
}

// line reads a line, except for lines of the firmware. It returns false at the end of the output.
func (c *counting) line() (string, bool) {
	for {
		if line, rest, found := strings.Cut(c.rest, "\n"); found {
			c.rest = rest
			if strings.HasSuffix(line, "\r") {
				continue // the guests do not print carriage returns
			}
			return line, true
		}
		next, more := <-c.output
		if !more {
			return "", false
		}
		c.rest += next.text
		c.at = next.at
	}
}

// next reads the next number, which must follow the previous one.
func (c *counting) next() bool {
	c.t.Helper()
	line, found := c.line()
	for found && line == "boot" {
		line, found = c.line()
	}
	if !found {
		return false
	}
	number, err := strconv.ParseUint(strings.Map(func(letter rune) rune {
		return rune(fmt.Sprintf("%x", letter-'a')[0])
	}, line), 16, 32)
	if err != nil || len(line) != 8 {
		c.t.Fatalf("%q is not a number: a write failed", line)
	}
	if c.read > 0 && number != c.last+1 {
		c.t.Fatalf("the guest printed %d after %d", number, c.last)
	}
	c.last = number
	c.read++
	return true
}

func (c *counting) numbers(count int) {
	c.t.Helper()
	for range count {
		if !c.next() {
			c.t.Fatalf("the console was closed after %d", c.last)
		}
	}
}

// keepsRunning reads until the guest has written something after this call, and ten more numbers.
func (c *counting) keepsRunning() {
	c.t.Helper()
	for called := time.Now(); !c.at.After(called); {
		c.numbers(1)
	}
	c.numbers(10)
}

// toTheEnd reads the remaining output of a guest that terminates or leaves.
func (c *counting) toTheEnd() {
	c.t.Helper()
	for c.next() {
	}
}

// continuesOn connects to the console of the member on which the guest continues after the last line here, which may
// be incomplete.
func (c *counting) continuesOn(arrived *member) *counting {
	c.t.Helper()
	continued := arrived.counts()
	continued.rest = c.rest + continued.rest
	continued.last, continued.read = c.last, c.read
	return continued
}

// written returns the numbers that scribe has written to a disk, by their position.
func written(t *testing.T, disk string) []uint64 {
	t.Helper()
	content, err := os.ReadFile(disk)
	must(t, err)
	numbers := make([]uint64, 4096)
	for place := range numbers {
		numbers[place] = uint64(binary.LittleEndian.Uint32(content[(2048+place)*512:]))
	}
	return numbers
}

// wantAll checks the disks of a guest after last was read. The guest may have written more numbers since. It
// writes each number to one disk after another, so no disk is ahead of the previous one, or more than one number
// behind it.
func (m *member) wantAll(last uint64) {
	m.t.Helper()
	before := uint64(0)
	for i, name := range append([]string{""}, m.disks...) {
		path := m.disk
		if name != "" {
			path = m.data[name]
		}
		numbers := written(m.t, path)
		for back := range min(last+1, 4095) {
			number := last - back
			if got := numbers[number%4096]; got < number || (got-number)%4096 != 0 {
				m.t.Fatalf("disk %q: position %d contains %d, want %d: a write was lost", name, number%4096, got, number)
			}
		}
		newest := slices.Max(numbers)
		if i > 0 && (newest > before || newest+1 < before) {
			m.t.Fatalf("disk %q contains %d, and the previous one %d: they are not from the same moment", name, newest, before)
		}
		before = newest
	}
}

// TestMigration_BySignalAndBack moves a guest by a signal, and back by a request.
func TestMigration_BySignalAndBack(t *testing.T) {
	t.Parallel()
	h := newTestCluster(t)
	source := h.source()
	here := source.counts()
	here.keepsRunning()
	target := h.target("web-2")
	h.names(func(int) *member { return target })

	begun := time.Now()
	source.term()
	source.term() // has no effect
	here.toTheEnd()
	source.wantEnd(vmpb.EndTerminated)
	onTarget := here.continuesOn(target)
	onTarget.numbers(1)
	t.Logf("moved in %v; the guest was stopped for %v", onTarget.at.Sub(begun), onTarget.at.Sub(here.at))
	onTarget.keepsRunning()
	target.wantAlive()
	if holder := h.controller.Holder(); holder.GetPodName() != "web-2" {
		t.Errorf("authoritative: %v", holder)
	}
	target.kill()
	target.wantAll(onTarget.last)
}

// TestMigration_SourceKeepsOnlyClients checks that a source with clients of its guest keeps nothing but them after the
// switchover, not even for a moment that the target would have to wait for, and then exits.
func TestMigration_SourceKeepsOnlyClients(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newTestCluster(t)
	port := freeport.Address(t).Port()
	h.exposed = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
	source := h.source()
	here := source.counts()
	here.keepsRunning()
	client, err := net.Dial("tcp", h.exposed.String())
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	h.exposed = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), port)
	target := h.moves("web-2")
	here.toTheEnd()
	onTarget := here.continuesOn(target)
	onTarget.keepsRunning()

	for {
		lock, err := disk.Acquire(source.disk)
		if err == nil {
			must(t, lock.Release())
			break
		}
		if !errors.Is(err, disk.ErrLocked) {
			t.Fatal(err)
		}
		source.wantAlive() // it holds the lock while QEMU terminates
		time.Sleep(time.Millisecond)
	}
	source.wantAlive()
	if found := program.Processes(t, source.root, "qemu-system-x86_64"); len(found) > 0 {
		t.Errorf("the processes %v still run", found)
	}
	if _, err := client.Write([]byte("x")); err != nil {
		t.Errorf("the client of the source: %v", err)
	}
	source.wantEnd(vmpb.EndTerminated)
	log, err := os.ReadFile(filepath.Join(source.root, "log"))
	must(t, err)
	if strings.Contains(string(log), "does not carry them") {
		t.Error("the target has not carried the connections until the source exited")
	}
	if _, err := client.Read(make([]byte, 1)); err == nil {
		t.Error("the client of a source that has exited is connected")
	}
}

// moves requests a migration to a target in the given Pod, and returns the target.
func (h *testCluster) moves(pod string) *member {
	h.t.Helper()
	target := h.target(pod)
	h.names(func(int) *member { return target })
	h.controller.Change(func(a *authority) { a.migrate = true })
	return target
}

// follows moves a guest to the given Pod and reads its output there. It logs how long the guest was stopped.
func (h *testCluster) follows(here *member, console *counting, pod string) (*member, *counting) {
	h.t.Helper()
	target := h.moves(pod)
	console.toTheEnd()
	stopped := console.at
	here.wantEnd(vmpb.EndTerminated)
	console = console.continuesOn(target)
	console.numbers(1)
	h.t.Logf("the guest was stopped for %v", console.at.Sub(stopped))
	return target, console
}

// grow enlarges disks while the guest runs, and waits until they are enlarged.
func (h *testCluster) grow(sizes ...*vmpb.DiskSize) []*vmpb.DiskSize {
	h.t.Helper()
	return h.growBy(&vmpb.RunLeaseUpdate{Status: vmpb.RunLeaseUpdate_STATUS_OK, Grow: sizes})
}

// growHeld is like grow, while the guest is stopped.
func (h *testCluster) growHeld(sizes ...*vmpb.DiskSize) []*vmpb.DiskSize {
	h.t.Helper()
	return h.growBy(&vmpb.RunLeaseUpdate{Status: vmpb.RunLeaseUpdate_STATUS_OK, Paused: true, Grow: sizes})
}

func (h *testCluster) growBy(response *vmpb.RunLeaseUpdate) []*vmpb.DiskSize {
	h.t.Helper()
	sizes := response.GetGrow()
	h.controller.Respond(response)
	ctx, cancel := context.WithTimeout(h.t.Context(), waitTimeout)
	defer cancel()
	_, err := h.controller.AwaitReport(ctx, func(report *vmpb.ReportStateRequest) bool {
		for _, size := range sizes {
			if !slices.ContainsFunc(report.GetDisks(), func(has *vmpb.DiskSize) bool { return proto.Equal(has, size) }) {
				return false
			}
		}
		return true
	})
	must(h.t, err)
	return sizes
}

// TestMigration_ByControllerRequest moves a guest whose disks have grown without a signal, and moves it again by the next
// request. In an exhaustive run, it moves the guest twenty times.
func TestMigration_ByControllerRequest(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newTestCluster(t)
	h.eager = true
	here := h.source()
	console := here.counts()
	console.keepsRunning()
	grown := h.grow(&vmpb.DiskSize{Bytes: scribeDisk + 2<<20}, &vmpb.DiskSize{Name: "logs", Bytes: scribeDisk + 5<<20})
	pods := []string{"web-2", "web-3"}
	if tier.Exhaustive() {
		for number := range 18 {
			pods = append(pods, fmt.Sprintf("web-%d", number+4))
		}
	}
	for _, pod := range pods {
		target := h.moves(pod)
		console.toTheEnd()
		here.wantEnd(vmpb.EndTerminated)
		here, console = target, console.continuesOn(target)
		console.keepsRunning()
	}
	here.kill()
	here.wantAll(console.last)
	for path, size := range map[string]uint64{here.disk: grown[0].GetBytes(), here.data["logs"]: grown[1].GetBytes(), here.data["db"]: h.data[1].GetBytes()} {
		if info, err := os.Stat(path); err != nil || uint64(info.Size()) != size {
			t.Errorf("%s: %v, %v; want %d bytes", path, info, err, size)
		}
	}
	// The last report of a source and the first of its target may be reordered.
	h.wantPhases("web-1", copying, stopped)
	for _, pod := range pods[:len(pods)-1] {
		h.wantPhases(pod, done, copying, stopped)
	}
	h.wantPhases(pods[len(pods)-1], done)
}

const (
	copying = vmpb.ReportStateRequest_Migration_PHASE_COPYING
	stopped = vmpb.ReportStateRequest_Migration_PHASE_STOPPED
	done    = vmpb.ReportStateRequest_Migration_PHASE_DONE
	failed  = vmpb.ReportStateRequest_Migration_PHASE_FAILED
)

// wantPhases checks the phases that a Pod has reported. A fast migration skips the first ones.
func (h *testCluster) wantPhases(pod string, want ...vmpb.ReportStateRequest_Migration_Phase) {
	h.t.Helper()
	got := h.controller.Phases(pod)
	for _, phase := range got {
		at := slices.Index(want, phase)
		if at < 0 {
			h.t.Errorf("%s reported the phases %v, want a subset of %v", pod, got, want)
			return
		}
		want = want[at+1:]
	}
}

// TestMigration_ShutdownInstead shuts the guest down if it cannot migrate.
func TestMigration_ShutdownInstead(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, spoil := range map[string]func(*testCluster){
		"the controller requests it":      func(*testCluster) {},
		"the controller does not respond": func(h *testCluster) { h.line.Cut(true) },
		"there is not enough time":        func(h *testCluster) { h.grace = time.Second },
		"there is no target in time":      func(h *testCluster) { h.grace = 4 * time.Second; h.names(func(int) *member { return nil }) },
		"there is less time than its Pod has": func(h *testCluster) {
			h.grace = 10 * time.Minute
			h.controller.Change(func(a *authority) { a.ensure = targetForHost(4 * time.Second) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestCluster(t)
			h.timing.Grace = time.Second // scribe ignores the power button
			if strings.HasPrefix(name, "there") {
				h.timing.Margin = 10 * time.Millisecond
				spoil(h)
			}
			source := h.source()
			console := source.counts()
			console.numbers(10)
			spoil(h)
			begun := time.Now()
			source.term()
			source.wantEnd(vmpb.EndStopped)
			t.Logf("terminated after %v", time.Since(begun))
			console.toTheEnd()
		})
	}
}

// targetForHost makes the controller name a target that does not respond, as for a host that gives Pods less time than their
// grace period.
func targetForHost(grace time.Duration) func(context.Context) (*vmpb.EnsureMigrationTargetResponse, error) {
	return func(context.Context) (*vmpb.EnsureMigrationTargetResponse, error) {
		return &vmpb.EnsureMigrationTargetResponse{
			Action:         vmpb.EnsureMigrationTargetResponse_ACTION_LIVE_MIGRATE,
			TargetEndpoint: "127.0.0.1:1", TargetPod: "web-2", Grace: durationpb.New(grace),
		}, nil
	}
}

// While a guest waits for a target, its controller is unavailable for a long time. The guest keeps running, or is
// shut down when the process gets a second SIGTERM.
func TestMigration_ControllerUnavailable(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, secondSignal := range map[string]bool{"temporarily": false, "during a shutdown of the installation": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestCluster(t)
			h.grace, h.timing.Grace = 10*time.Minute, time.Second
			source := h.source()
			here := source.counts()
			here.numbers(10)
			asked, target := make(chan struct{}, 100), make(chan *member, 1)
			h.names(func(int) *member {
				asked <- struct{}{}
				select {
				case member := <-target:
					return member
				default:
					return nil
				}
			})
			source.term()
			<-asked
			h.line.Cut(true)
			if secondSignal {
				source.term()
				source.wantEnd(vmpb.EndStopped)
				return
			}
			for cut := time.Now(); time.Since(cut) < 4*time.Second; {
				here.numbers(1)
			}
			target <- h.target("web-2")
			h.line.Cut(false)
			here.toTheEnd()
			source.wantEnd(vmpb.EndTerminated)
		})
	}
}

// awaitPhase waits for a report of a phase.
func (h *testCluster) awaitPhase(want vmpb.ReportStateRequest_Migration_Phase) *vmpb.ReportStateRequest {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), waitTimeout)
	defer cancel()
	report, err := h.controller.AwaitReport(ctx, func(report *vmpb.ReportStateRequest) bool {
		return report.GetMigration().GetPhase() == want
	})
	must(h.t, err)
	return report
}

// awaitCopy waits until a part was copied.
func (h *testCluster) awaitCopy() { h.t.Helper(); h.awaitCopied(0) }

// awaitCopied waits until more than the given number of bytes was copied. The total is first that of all disks,
// and later that of the memory.
func (h *testCluster) awaitCopied(bytes uint64) *vmpb.ReportStateRequest_Migration {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), waitTimeout)
	defer cancel()
	report, err := h.controller.AwaitReport(ctx, func(report *vmpb.ReportStateRequest) bool {
		return report.GetMigration().GetPhase() == copying && report.GetMigration().GetDoneBytes() > bytes
	})
	must(h.t, err)
	all := h.size
	for _, data := range h.data {
		all += data.GetBytes()
	}
	if total := report.GetMigration().GetTotalBytes(); total < all || total > all+h.memory+1<<20 {
		h.t.Errorf("total = %d bytes, but the disks have %d bytes", total, all)
	}
	return report.GetMigration()
}

// amid waits until a part of the first or the second disk was copied. Copying them takes a while.
func (h *testCluster) amid(second bool) {
	h.t.Helper()
	from, to := uint64(0), h.size
	if second {
		from, to = h.size, h.size+h.data[0].GetBytes()
	}
	if done := h.awaitCopied(from).GetDoneBytes(); done >= to {
		h.t.Errorf("copied %d bytes, want less than %d", done, to)
	}
}

// full makes the copies of the first two disks take ten seconds each. QEMU copies the first 10 MiB of a disk
// immediately, regardless of the limit.
func (h *testCluster) full() {
	h.bandwidth = 2 << 20
	h.fill(32 << 20)
}

// fill adds the given number of bytes of data to the first two disks.
func (h *testCluster) fill(noise uint64) {
	h.noise = noise
	h.size += noise + 1<<20
	h.data[0].Bytes += noise
}

// whichDisk maps test names to whether the second disk is being copied.
var whichDisk = map[string]bool{"during the first disk": false, "during the second disk": true}

// slowly starts machines whose first copy is slower than the writes of their guests, so that it hardly ever
// completes. Later copies are fast.
type slowly struct{ hypervisor.Starter }

// Start implements hypervisor.Starter.
func (s slowly) Start(ctx context.Context, config qemu.Config) (hypervisor.Machine, error) {
	machine, err := s.Starter.Start(ctx, config)
	if err != nil {
		return machine, err
	}
	return &slow{machine, 64 << 10}, nil
}

type slow struct {
	hypervisor.Machine
	bandwidth uint64 // of the next copy
}

// Send implements hypervisor.Machine.
func (s *slow) Send(ctx context.Context, to qemu.Destination, progress func(qemu.Progress)) error {
	to.Bandwidth, s.bandwidth = s.bandwidth, 1<<30
	return s.Machine.Send(ctx, to, progress)
}

// The target, or the connection to it, fails while the guest runs. The guest keeps running and moves to the next
// target.
func TestMigration_TargetFails(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, fail := range map[string]func(h *testCluster, target *member){
		"the target is killed": func(h *testCluster, target *member) {
			h.awaitPhase(copying)
			target.kill()
		},
		"the target is terminated": func(h *testCluster, target *member) {
			h.awaitPhase(copying)
			h.controller.Change(func(a *authority) { a.target = "" })
			target.wantEnd(vmpb.EndTerminated)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestCluster(t)
			h.slow = true
			source := h.source()
			here := source.counts()
			here.numbers(10)
			first := h.target("web-2")
			second := make(chan *member, 1)
			h.names(func(question int) *member {
				if question == 0 {
					return first
				}
				next := h.target("web-3")
				second <- next
				return next
			})
			h.controller.Change(func(a *authority) { a.migrate = true })
			fail(h, first)
			h.awaitPhase(failed)
			h.awaitPhase(done)
			here.toTheEnd()
			source.wantEnd(vmpb.EndTerminated)
			arrived := <-second
			onTarget := here.continuesOn(arrived)
			onTarget.keepsRunning()
			arrived.kill()
			arrived.wantAll(onTarget.last)
		})
	}
}

// One of the target's disks is full.
func TestMigration_TargetDiskFull(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, put := range map[string]func(m *member, path string){
		"root": func(m *member, path string) { m.disk = path },
		"logs": func(m *member, path string) { m.data["logs"] = path },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestCluster(t)
			h.fill(1 << 20)
			source := h.source()
			here := source.counts()
			here.keepsRunning()
			small := smallfs.NewSize(t, 64<<10) // the disks contain more data
			target := h.start("web-2", vmpb.VMSpec_SM_INCOMING_MIGRATION, func(m *member) { put(m, small.Path("disk.img")) })
			h.names(func(question int) *member {
				if question > 0 {
					return nil
				}
				return target
			})
			h.controller.Change(func(a *authority) { a.migrate = true })
			report := h.awaitPhase(failed)
			h.controller.Change(func(a *authority) { a.migrate = false })
			t.Logf("failed with: %s", report.GetMigration().GetMessage())
			target.wantEnd(vmpb.EndNotArrived)
			here.keepsRunning()
			source.kill()
			here.toTheEnd()
			source.wantAll(here.last)
		})
	}
}

// Another process holds one of the target's disks. The migration does not start, and the guest moves to the next
// target.
func TestMigration_TargetDiskLocked(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newTestCluster(t)
	h.timing.LockRetry, h.timing.LockLimit = 50*time.Millisecond, 500*time.Millisecond
	source := h.source()
	here := source.counts()
	here.numbers(10)
	first := h.start("web-2", vmpb.VMSpec_SM_INCOMING_MIGRATION, func(m *member) {
		lock, err := disk.Acquire(m.data["db"])
		must(t, err)
		t.Cleanup(func() { _ = lock.Release() })
	})
	first.wantEnd(vmpb.EndDiskLocked)
	h.migratesAgain(source, here)
}

// The request to move is canceled.
func TestMigration_IsCancelled(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, second := range whichDisk {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestCluster(t)
			h.full()
			source := h.source()
			here := source.counts()
			target := h.moves("web-2")
			h.amid(second)
			h.controller.Change(func(a *authority) { a.migrate = false })
			target.wantEnd(vmpb.EndNotArrived)
			here.keepsRunning()
			source.wantAlive()
			if holder := h.controller.Holder(); holder.GetPodName() != "web-1" {
				t.Errorf("authoritative: %v", holder)
			}
			source.kill()
			here.toTheEnd()
			source.wantAll(here.last)
		})
	}
}

// The source is killed while the guest runs. The target has never run the guest, and the source has everything
// that the guest wrote.
func TestMigration_SourceKilledBeforeCommit(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, second := range whichDisk {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestCluster(t)
			h.full()
			source := h.source()
			here := source.counts()
			here.numbers(10)
			target := h.moves("web-2")
			h.amid(second)
			source.kill()
			target.wantEnd(vmpb.EndNotArrived)
			if holder := h.controller.Holder(); holder.GetPodName() != "web-1" {
				t.Errorf("authoritative: %v", holder)
			}
			here.toTheEnd()
			source.wantAll(here.last)
		})
	}
}

// holdSwitchovers makes switchovers fail until the returned function is called. The channel receives the callers.
func (h *testCluster) holdSwitchovers() (asked <-chan *vmpb.HypervisorID, release func()) {
	who := make(chan *vmpb.HypervisorID, 1000)
	h.controller.Change(func(a *authority) {
		a.before = func(us *vmpb.HypervisorID) error {
			who <- us
			return status.Error(codes.Unavailable, "the controller is starting")
		}
	})
	return who, func() { h.controller.Change(func(a *authority) { a.before = nil }) }
}

// letsGo prevents a source from reclaiming its VM before a target has it, even if the target is slow.
func (h *testCluster) letsGo(source *member) {
	h.controller.Change(func(a *authority) {
		a.before = func(us *vmpb.HypervisorID) error {
			if us.GetPodName() == source.pod && h.controller.Holder().GetPodName() == source.pod {
				return status.Error(codes.Unavailable, "the target is slow")
			}
			return nil
		}
	})
}

// After the commit, the guest runs where the controller decides, no matter which process is killed.
func TestMigration_ProcessKilledAfterCommit(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, test := range map[string]struct {
		killed string
		want   string
	}{
		"source": {"web-1", "web-2"},
		"target": {"web-2", "web-1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestCluster(t)
			h.departure.Switchover = waitTimeout
			if test.killed == "web-2" {
				h.departure.Switchover = 2 * time.Second
			}
			asked, release := h.holdSwitchovers()
			members := map[string]*member{"web-1": h.source()}
			here := members["web-1"].counts()
			here.numbers(10)
			members["web-2"] = h.target("web-2")
			h.names(func(int) *member { return members["web-2"] })
			h.controller.Change(func(a *authority) { a.migrate = true })
			for us := <-asked; us.GetPodName() != "web-2"; us = <-asked {
				if test.killed != "web-2" { // otherwise the source asks soon, and before a slow target
					t.Fatalf("unexpected request for the authority by %v", us)
				}
			}
			members[test.killed].kill()
			release()
			if test.want == "web-1" {
				// The guest continues here, and nothing is lost. The first lines may be from before it was
				// stopped.
				h.awaitReturn(members["web-1"])
				here.keepsRunning()
				holder := h.controller.Holder()
				if first := h.controller.Runs()[0]; holder.GetPodName() != "web-1" || holder.GetRunId() <= first.GetRunId() {
					t.Errorf("authoritative: %v, after %v", holder, first)
				}
				h.migratesAgain(members["web-1"], here)
				return
			}
			here.toTheEnd()
			onTarget := here.continuesOn(members["web-2"])
			onTarget.keepsRunning()
			members["web-2"].kill()
			members["web-2"].wantAll(onTarget.last)
		})
	}
}

// The switchover was performed, but its response is lost. The target asks again.
func TestMigration_SwitchoverResponseLost(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newTestCluster(t)
	source := h.source()
	here := source.counts()
	here.numbers(10)
	target := h.target("web-2")
	h.names(func(int) *member { return target })
	lost := make(chan struct{}, 1)
	h.controller.Change(func(a *authority) {
		a.migrate = true
		a.after = func(*vmpb.HypervisorID) error {
			select {
			case lost <- struct{}{}:
				return status.Error(codes.Unavailable, "the response is lost")
			default:
				return nil
			}
		}
	})
	here.toTheEnd()
	source.wantEnd(vmpb.EndTerminated)
	onTarget := here.continuesOn(target)
	onTarget.keepsRunning()
	if len(lost) != 1 {
		t.Errorf("lost %d responses, want 1", len(lost))
	}
	target.kill()
	target.wantAll(onTarget.last)
}

// migratesAgain checks whether a guest that was taken back can migrate again.
func (h *testCluster) migratesAgain(source *member, here *counting) {
	h.t.Helper()
	h.letsGo(source)
	target := h.moves("web-3")
	here.toTheEnd()
	source.wantEnd(vmpb.EndTerminated)
	onTarget := here.continuesOn(target)
	onTarget.keepsRunning()
	target.kill()
	target.wantAll(onTarget.last)
}
