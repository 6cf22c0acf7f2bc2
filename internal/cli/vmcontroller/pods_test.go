package vmcontroller

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/manager"
)

func podFlags(t *testing.T, line ...string) *pods {
	t.Helper()
	p, set := &pods{}, pflag.NewFlagSet("test", pflag.ContinueOnError)
	p.add(set)
	if err := set.Parse(line); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPodFlags(t *testing.T) {
	if diff := cmp.Diff(manager.VMPods{User: 65532}, podFlags(t).options()); diff != "" {
		t.Errorf("without flags (-want +got):\n%s", diff)
	}
	got := podFlags(t, "--hypervisor-user=0", "--hypervisor-groups=104,36", "--kvm-resource=devices.example.com/kvm",
		"--hypervisor-priority-class=machines", "--hypervisor-pull-secrets=a,b").options()
	want := manager.VMPods{
		Groups: []int64{104, 36}, KVMResource: "devices.example.com/kvm", PriorityClass: "machines", PullSecrets: []string{"a", "b"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("with flags (-want +got):\n%s", diff)
	}
}

func TestPodFlags_RejectInvalidValues(t *testing.T) {
	for flag, accelerator := range map[string]string{
		"--hypervisor-user=-1": "auto", "--hypervisor-groups=-5": "auto", "--kvm-resource=a/b/c": "auto", "--kvm-host-path=kvm": "auto",
		"--kvm-host-path=/dev/../etc": "auto", "--hypervisor-priority-class=No Class": "auto", "--hypervisor-pull-secrets=a,_": "auto",
		"--kvm-resource=devices.example.com/kvm": "tcg",
	} {
		var wrong args.Problems
		podFlags(t, flag).validate(&wrong, accelerator)
		name, _, _ := strings.Cut(flag, "=")
		if err := wrong.Err(); err == nil || !strings.HasPrefix(err.Error(), name+":") {
			t.Errorf("%s returned %v", flag, err)
		}
	}
	var wrong args.Problems
	podFlags(t, "--kvm-resource=devices.example.com/kvm", "--kvm-host-path=/dev/kvm").validate(&wrong, "kvm")
	if wrong.Err() == nil {
		t.Error("both ways to KVM are accepted")
	}
}
