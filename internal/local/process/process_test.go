package process

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/internal/local/directory"
	"github.com/millwright-dev/millwright/internal/local/proc"
)

// waitTimeout limits operations that take milliseconds.
const waitTimeout = 2 * time.Minute

// role makes the test binary run as one of the roles below.
const role = "TEST_PROCESS_ROLE"

var roles = map[string]func(){
	// Exits with a status.
	"exit": func() { fmt.Println("some output"); os.Exit(3) },
	// Waits for a signal.
	"wait": func() { fmt.Println("ready"); pause() },
	// Exits only on SIGKILL.
	"deaf": func() { signal.Ignore(syscall.SIGTERM); fmt.Println("ready"); pause() },
	// Starts a child in its own process group that exits only on SIGKILL.
	"parent": func() { startDeaf(); pause() },
	// Starts the same child, and exits immediately.
	"orphaner": func() { startDeaf() },
	// Starters that are killed at some point.
	"killed before fork": func() { startPartly(false) },
	"killed after fork":  func() { startPartly(true) },
	"killed later":       func() { startWholly() },
}

func TestMain(m *testing.M) {
	if be, ok := roles[os.Getenv(role)]; ok {
		be()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func startDeaf() {
	command := exec.Command(os.Args[0])
	command.Env = []string{role + "=deaf"}
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// Files are passed from descriptor 3 on, as for QEMU.
	command.ExtraFiles = []*os.File{os.Stdin, os.Stdin, os.Stdin}
	output, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(9)
	}
	bufio.NewReader(output).ReadString('\n') // on failure the test times out
	fmt.Println("ready")
}

const (
	startDir  = "TEST_PROCESS_DIR"
	startRole = "TEST_PROCESS_OF"
)

func kill() { syscall.Kill(os.Getpid(), syscall.SIGKILL); pause() } // kills this process

// pause outlasts every test. An empty select would be reported as a deadlock.
func pause() { time.Sleep(time.Hour) }

func startPartly(fork bool) {
	dir := os.Getenv(startDir)
	lock, err := directory.Lock(lockPath(recordIn(dir)))
	if err == nil {
		err = record{Began: time.Now()}.write(recordIn(dir))
	}
	if err == nil && fork {
		_, err = spawn(of(dir, os.Getenv(startRole)), lock)
	}
	if err != nil {
		panic(err)
	}
	kill()
}

func startWholly() {
	dir := os.Getenv(startDir)
	if _, err := Start(recordIn(dir), of(dir, os.Getenv(startRole)), time.Now()); err != nil {
		panic(err)
	}
	kill()
}

// startAndDie starts a process from another process that is killed in the meantime.
func startAndDie(t *testing.T, how, what string) string {
	t.Helper()
	dir := newDir(t)
	starter := exec.Command(os.Args[0])
	starter.Env = []string{role + "=" + how, startDir + "=" + dir, startRole + "=" + what}
	output, err := starter.CombinedOutput()
	if status, ok := starter.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() {
		t.Fatalf("the starter was not killed: %v: %s", err, output)
	}
	t.Cleanup(func() { killAll(recordIn(dir)) }) // for failed tests
	return dir
}

func recordIn(dir string) string { return filepath.Join(dir, "process.json") }

func of(dir, what string) Command {
	return Command{Path: os.Args[0], Dir: dir, Env: []string{role + "=" + what}, Log: filepath.Join(dir, "log")}
}

func start(t *testing.T, what string) (*Process, string) {
	t.Helper()
	dir := newDir(t)
	p, err := Start(recordIn(dir), of(dir, what), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill(); <-p.Ended() })
	return p, dir
}

// newDir returns a directory whose log is a FIFO that awaitReady reads.
func newDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "log"), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	logs.Store(dir, log)
	return dir
}

// logs contains the open logs by directory.
var logs sync.Map

func awaitReady(t *testing.T, dir string) {
	t.Helper()
	log, _ := logs.Load(dir)
	if err := log.(*os.File).SetReadDeadline(time.Now().Add(waitTimeout)); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(log.(*os.File)).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the process is not ready: it printed %q (%v)", line, err)
	}
}

func awaitExit(t *testing.T, p *Process) Exit {
	t.Helper()
	select {
	case <-p.Ended():
	case <-time.After(waitTimeout):
		t.Fatalf("process %d does not end", p.PID())
	}
	exit, err := p.Exit()
	if err != nil {
		t.Fatal(err)
	}
	exit.Time = time.Time{}
	return exit
}

func requireNotRunning(t *testing.T, dir string) {
	t.Helper()
	if running, err := Running(recordIn(dir)); running || err != nil {
		t.Errorf("running = %t, %v", running, err)
	}
	if pids, err := settledMembers(recordIn(dir)); err != nil || len(pids) > 0 {
		t.Errorf("processes %v are left (%v)", pids, err)
	}
}

func TestProcess_ExitStatus(t *testing.T) {
	cases := map[string]struct {
		reason string
		what   string
		do     func(*Process)
		want   Exit
	}{
		"status": {"the exit status is passed on", "exit", func(*Process) {}, Exit{Known: true, Code: 3}},
		"asked": {
			"SIGTERM terminates a process that does not handle it", "wait", (*Process).Terminate,
			Exit{Known: true, Code: 143, Signal: syscall.SIGTERM},
		},
		"killed": {
			"nothing is deaf to Kill", "deaf", func(p *Process) { p.Terminate(); p.Kill() },
			Exit{Known: true, Code: 137, Signal: syscall.SIGKILL},
		},
		"killed with family": {
			"Kill also kills the children of the process", "parent", (*Process).Kill,
			Exit{Known: true, Code: 137, Signal: syscall.SIGKILL},
		},
		"leaves family": {
			"children that outlive the process are killed", "orphaner", func(*Process) {}, Exit{Known: true},
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			p, dir := start(t, test.what)
			if test.what != "exit" {
				awaitReady(t, dir)
			}
			test.do(p)
			if diff := cmp.Diff(test.want, awaitExit(t, p)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.reason, diff)
			}
			requireNotRunning(t, dir)
		})
	}
}

func TestStart_NewSession(t *testing.T) {
	p, dir := start(t, "wait")
	awaitReady(t, dir)
	if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.PID())); err != nil || cwd != dir {
		t.Errorf("it works in %s (%v), want %s", cwd, err, dir)
	}
	stat, err := proc.Stat(p.PID())
	if err != nil || stat.Session != p.PID() {
		t.Errorf("its session is %d (%v), want one of its own, %d", stat.Session, err, p.PID())
	}
}

func TestStart_RejectsSecondStart(t *testing.T) {
	p, dir := start(t, "wait")
	if _, err := Start(recordIn(dir), of(dir, "wait"), time.Now()); !errors.Is(err, directory.ErrLocked) {
		t.Fatalf("a second start gives %v, want %v", err, directory.ErrLocked)
	}
	p.Kill()
	awaitExit(t, p)
}

func TestOpen_FindsRunningProcess(t *testing.T) {
	for _, how := range []string{"killed later", "killed after fork"} {
		t.Run(how, func(t *testing.T) {
			dir := startAndDie(t, how, "parent")
			awaitReady(t, dir)
			if running, err := Running(recordIn(dir)); !running || err != nil {
				t.Errorf("running = %t, %v", running, err)
			}
			p, err := Open(recordIn(dir))
			if err != nil {
				t.Fatal(err)
			}
			pids, err := members(recordIn(dir))
			if err != nil || len(pids) != 2 {
				t.Fatalf("the processes are %v (%v), want the one and its child", pids, err)
			}
			if stat, err := proc.Stat(p.PID()); err != nil || stat.Session != p.PID() {
				t.Errorf("took %d for the process, whose session is %d (%v)", p.PID(), stat.Session, err)
			}
			if r, err := readRecord(recordIn(dir)); err != nil || r.PID != p.PID() {
				t.Errorf("the record is %+v (%v), want number %d", r, err, p.PID())
			}
			p.Terminate()
			if diff := cmp.Diff(Exit{}, awaitExit(t, p)); diff != "" {
				t.Errorf("how it ended is for its parent to know (-want +got):\n%s", diff)
			}
			requireNotRunning(t, dir)
		})
	}
}

func TestOpen_ProcessHasExited(t *testing.T) {
	cases := map[string]struct{ reason, how, what string }{
		"ended":      {"the process has ended meanwhile", "killed later", "exit"},
		"unrecorded": {"so it has, and its PID was not recorded", "killed after fork", "exit"},
		"not forked": {"it is unknown whether it ran, so it must not be started again", "killed before fork", "exit"},
		"orphan":     {"what it left is killed", "killed later", "orphaner"},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			dir := startAndDie(t, test.how, test.what)
			if test.what == "orphaner" {
				awaitReady(t, dir)
			}
			p, err := Open(recordIn(dir))
			if err != nil {
				t.Fatalf("%s: %v", test.reason, err)
			}
			if diff := cmp.Diff(Exit{}, awaitExit(t, p)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.reason, diff)
			}
			requireNotRunning(t, dir)
		})
	}
}

func TestOpen_NeverStarted(t *testing.T) {
	dir := t.TempDir()
	if running, err := Running(recordIn(dir)); running || err != nil {
		t.Errorf("running = %t, %v", running, err)
	}
	if _, err := Open(recordIn(dir)); !errors.Is(err, ErrNeverStarted) {
		t.Errorf("an empty directory gives %v, want %v", err, ErrNeverStarted)
	}
	if _, err := Open(recordIn(filepath.Join(dir, "missing"))); !errors.Is(err, ErrNeverStarted) {
		t.Errorf("no directory gives %v, want %v", err, ErrNeverStarted)
	}
	missing := Command{Path: filepath.Join(dir, "missing"), Log: filepath.Join(dir, "log")}
	if _, err := Start(recordIn(dir), missing, time.Now()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("starting what is missing gives %v, want %v", err, os.ErrNotExist)
	}
	if _, err := Open(recordIn(dir)); !errors.Is(err, ErrNeverStarted) {
		t.Errorf("after a start that failed there is %v, want %v", err, ErrNeverStarted)
	}
}

func TestOpen_InvalidRecordCountsAsStart(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(recordIn(dir), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := Open(recordIn(dir))
	if err != nil {
		t.Fatal(err)
	}
	awaitExit(t, p)
}
