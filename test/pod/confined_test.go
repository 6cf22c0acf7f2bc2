package pod

import (
	"fmt"
	"os"
	"strings"

	"github.com/millwright-dev/millwright/test/program"
)

// isConfined checks what the kernel knows of the processes in the containers.
func (p *place) isConfined() {
	p.Helper()
	processes := program.Processes(p.T, "--namespace="+p.env.Namespace, "/usr/bin/millwright manager")
	if len(processes) != 2 {
		p.Fatalf("managers: %v", processes)
	}
	const none = "0000000000000000"
	for _, process := range processes {
		status := p.readProc(process.PID, "status")
		for key, want := range map[string]string{
			"Uid": "65532\t65532\t65532\t65532", "Gid": "65532\t65532\t65532\t65532", "NoNewPrivs": "1", "Seccomp": "2",
			"CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none,
		} {
			if line := key + ":\t" + want + "\n"; !strings.Contains(status, line) {
				p.Errorf("the status of the manager has no %q:\n%s", line, status)
			}
		}
		if pid := "\t1\n"; !strings.Contains(status, "NSpid:") || !strings.Contains(status[strings.Index(status, "NSpid:"):], pid) {
			p.Errorf("the manager is not the first process of its container:\n%s", status)
		}
		for line := range strings.Lines(p.readProc(process.PID, "mountinfo")) {
			if fields := strings.Fields(line); fields[4] == "/" && !strings.HasPrefix(fields[5], "ro,") {
				p.Errorf("the manager may write to its root: %s", line)
			}
		}
	}
}

func (p *place) readProc(pid int, name string) string {
	p.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		p.Fatal(err)
	}
	return string(text)
}
