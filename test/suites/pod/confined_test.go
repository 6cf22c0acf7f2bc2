package pod

import (
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/test/support/program"
)

// isConfined checks the confinement of containers' processes in the kernel.
func (p *place) isConfined(processes []program.Running) {
	p.Helper()
	const none = "0000000000000000"
	for _, process := range processes {
		status := p.readProc(process.PID, "status")
		for key, want := range map[string]string{
			"Uid": "65532\t65532\t65532\t65532", "Gid": "65532\t65532\t65532\t65532", "NoNewPrivs": "1", "Seccomp": "2",
			"CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none,
		} {
			if line := key + ":\t" + want + "\n"; !strings.Contains(status, line) {
				p.Errorf("the status of the program has no %q:\n%s", line, status)
			}
		}
		if pid := "\t1\n"; !strings.Contains(status, "NSpid:") || !strings.Contains(status[strings.Index(status, "NSpid:"):], pid) {
			p.Errorf("the program is not the first process of its container:\n%s", status)
		}
		for line := range strings.Lines(p.readProc(process.PID, "mountinfo")) {
			if fields := strings.Fields(line); fields[4] == "/" && !strings.HasPrefix(fields[5], "ro,") {
				p.Errorf("the program may write to its root: %s", line)
			}
		}
	}
}

// processes returns the processes of the containers, by the name of the MCM process that they replace.
func (p *place) processes() []program.Running {
	p.Helper()
	return program.Processes(p.T, "--namespace="+p.env.Namespace, "/machine-controller")
}

// enforcesPodSecurity checks that the namespace rejects Pods with more privileges than those of the manifests.
func (p *place) enforcesPodSecurity() {
	p.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "escalates", Namespace: p.env.Namespace}, Spec: p.template().Spec}
	pod.Spec.Containers[0].SecurityContext.AllowPrivilegeEscalation = ptr.To(true)
	if err := p.env.Client.Create(p.Context(), pod, client.DryRunAll); !apierrors.IsForbidden(err) {
		p.Errorf("creating a Pod that may escalate its privileges returned %v", err)
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
