package program

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// consoleTime is how long a console is listened to. It goes on for ever; what was said
// before comes at once, when the program has started on a machine that may be busy.
const consoleTime = 10 * time.Second

// LogConsoles logs the ends of what all guests of the "millwright up" of a folder have said,
// for whoever has to find out why one does not join.
func LogConsoles(t *testing.T, dir string) {
	t.Helper()
	vms, err := virtualMachines(dir)
	if err != nil {
		t.Logf("the guests' consoles: %v", err)
		return
	}
	for _, vm := range vms {
		t.Logf("the console of VM %s:\n%s", vm.Name, console(dir, vm).Tail(20))
	}
}

func virtualMachines(dir string) ([]vmv1alpha1.VirtualMachine, error) {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		return nil, err
	}
	config.Timeout = consoleTime
	scheme := runtime.NewScheme()
	if err := vmv1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	list := &vmv1alpha1.VirtualMachineList{}
	err = c.List(context.Background(), list) // the test's own context has ended
	return list.Items, err
}

// console is what a VM has said, or why that is not to be had.
func console(dir string, vm vmv1alpha1.VirtualMachine) *Output {
	ctx, cancel := context.WithTimeout(context.Background(), consoleTime)
	defer cancel()
	output := &Output{}
	command := Command(ctx, "vm", "console", vm.Name, "--namespace", vm.Namespace, "--dir", dir)
	command.Stdout, command.Stderr = output, output
	_ = command.Run() // it does not end by itself
	return output
}
