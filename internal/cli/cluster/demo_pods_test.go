package cluster

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/internal/cli/cluster/load"
	"github.com/millwright-dev/millwright/internal/cli/terminal"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
)

// pods returns three Pods: one ready, one terminating, and one without a node.
func pods() []corev1.Pod {
	ready := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	now := metav1.Now()
	return []corev1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Name: "web-c"}, Status: corev1.PodStatus{Phase: corev1.PodPending}},
		{
			ObjectMeta: metav1.ObjectMeta{Name: "web-b", DeletionTimestamp: &now}, Spec: corev1.PodSpec{NodeName: "pool-2"},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: ready},
		},
		{
			ObjectMeta: metav1.ObjectMeta{Name: "web-a"}, Spec: corev1.PodSpec{NodeName: "pool-1"},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: ready},
		},
	}
}

func halfway() rollout.Status {
	return rollout.Status{
		Pool: report.Pool{Counts: report.Counts{Desired: 3, Available: 3}, Updated: 1}, Key: types.NamespacedName{Namespace: "default", Name: "pool"}, Outcome: rollout.Progressing, Revision: 2,
	}
}

// TestDemo_PodView checks that a terminal shows all Pods in place, and that other output has a line for each
// change.
func TestDemo_PodView(t *testing.T) {
	requests := load.Count{Succeeded: 41, Slowest: 1500 * time.Millisecond}
	var screen bytes.Buffer
	onTerminal := &podsView{display: display{
		out: &screen, screen: &terminal.Screen{Out: &screen, Size: func() (int, int) { return 80, 40 }},
	}}
	if err := onTerminal.show(halfway(), pods(), requests, time.Now(), time.Minute); err != nil {
		t.Fatal(err)
	}
	for _, texts := range []string{
		"rolling out revision 2", "1 of 3 updated", "POD     NODE     STATE", "web-a   pool-1   Ready", "web-b   pool-2   Terminating",
		"web-c   -        Pending", "requests: 41 succeeded, 0 failed, slowest 1.5 s",
	} {
		if !strings.Contains(screen.String(), texts) {
			t.Errorf("the screen lacks %q:\n%s", texts, &screen)
		}
	}

	var lines bytes.Buffer
	inFile := &podsView{display: display{out: &lines}}
	for _, there := range [][]corev1.Pod{pods(), pods(), pods()[1:]} {
		if err := inFile.show(halfway(), there, requests, time.Now(), time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	want := `1 of 3 updated, 3 available
  web-a  Ready       on pool-1
  web-b  Terminating on pool-2
  web-c  Pending     on no node yet
  web-c  gone
`
	if diff := cmp.Diff(want, lines.String()); diff != "" {
		t.Errorf("prints (-want +got)\n%s", diff)
	}
}

// TestDemo_Defaults checks that full guests have their own examples and longer timeouts, and that flags take
// precedence.
func TestDemo_Defaults(t *testing.T) {
	for name, tc := range map[string]struct {
		flags    []string
		examples string
		timeout  time.Duration
	}{
		"small":           {nil, "", 5 * time.Minute},
		"full":            {[]string{"--guest=full"}, "", 30 * time.Minute},
		"full, but other": {[]string{"--guest=full", "--examples=mine", "--timeout=1m"}, "mine", time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			d := &demo{}
			cmd := d.command()
			if err := cmd.ParseFlags(tc.flags); err != nil {
				t.Fatal(err)
			}
			d.setDefaults(cmd.Flags())
			if d.examples != tc.examples || d.timeout != tc.timeout {
				t.Errorf("%s, %s", d.examples, d.timeout)
			}
		})
	}
}
