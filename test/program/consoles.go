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

// consoleTime is how long a console is read. It begins with earlier output.
const consoleTime = 10 * time.Second

// LogConsoles logs the last console output of all guests of the "millwright up" of a folder, to find
// out why one does not join.
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

// console returns the output of a VM's console, or of the command that reads it.
func console(dir string, vm vmv1alpha1.VirtualMachine) *Output {
	ctx, cancel := context.WithTimeout(context.Background(), consoleTime)
	defer cancel()
	output := &Output{}
	command := Command(ctx, "vm", "console", vm.Name, "--namespace", vm.Namespace, "--dir", dir)
	command.Stdout, command.Stderr = output, output
	_ = command.Run() // it does not end by itself
	return output
}
