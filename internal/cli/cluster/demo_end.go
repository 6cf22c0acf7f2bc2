package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// deleteAll deletes the deployments, and the classes and secrets once nothing uses them.
func (d *demo) deleteAll(ctx context.Context) error {
	fmt.Fprintln(d.stdout, "Deleting everything ...")
	for _, kind := range []client.Object{&v1alpha1.MachineDeployment{}, &v1alpha1.MachineClass{}} {
		if err := d.client.DeleteAllOf(ctx, kind, client.InNamespace(localNamespace)); err != nil {
			return fmt.Errorf("deleting: %w", err)
		}
	}
	err := d.showUntil(ctx, func(seen objects) bool { return len(seen.deployments) == 0 && len(seen.machines) == 0 })
	if err != nil {
		return fmt.Errorf("waiting for the machines to be gone: %w", err)
	}
	if err := d.client.DeleteAllOf(ctx, &corev1.Secret{}, client.InNamespace(localNamespace)); err != nil {
		return fmt.Errorf("deleting: %w", err)
	}
	return nil
}

// awaitNothingLeft waits until nothing is left of any machine: no object, no disk and no process.
// A volume, for example, ends a moment later than the Machine.
func (d *demo) awaitNothingLeft(ctx context.Context) error {
	var left []string
	err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (_ bool, err error) {
		left, err = d.leftovers(ctx)
		return len(left) == 0, err
	})
	if err != nil && len(left) > 0 {
		return fmt.Errorf("left over: %s: %w", strings.Join(left, ", "), err)
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(d.stdout, "Nothing is left: no machine, virtual machine, pod, node, volume, disk or process.")
	return nil
}

func (d *demo) leftovers(ctx context.Context) ([]string, error) {
	left, err := d.leftObjects(ctx)
	if err != nil {
		return nil, err
	}
	for _, pattern := range []string{"volumes/*", "hosts/*/pods/*"} {
		found, err := filepath.Glob(filepath.Join(d.mode.plane.Dir(), pattern))
		if err != nil {
			return nil, fmt.Errorf("looking for files: %w", err)
		}
		left = append(left, found...)
	}
	processes, err := qemusIn(filepath.Join(d.mode.plane.Dir(), "hosts"))
	return append(left, processes...), err
}

// leftObjects returns objects that only exist for machines.
func (d *demo) leftObjects(ctx context.Context) ([]string, error) {
	var left []string
	for _, list := range []client.ObjectList{
		&v1alpha1.MachineSetList{}, &v1alpha1.MachineList{}, &v1alpha1.MachineClassList{}, &vmv1alpha1.VirtualMachineList{},
		&corev1.PodList{}, &corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{}, &corev1.NodeList{},
	} {
		if err := d.client.List(ctx, list); err != nil {
			return nil, fmt.Errorf("looking for what is left: %w", err)
		}
		err := meta.EachListItem(list, func(item runtime.Object) error {
			object := item.(client.Object)
			if _, host := object.GetLabels()[vmv1alpha1.HostKey]; !host {
				left = append(left, strings.TrimPrefix(fmt.Sprintf("%T", object), "*v1.")+" "+object.GetName())
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("looking for what is left: %w", err)
		}
	}
	return left, nil
}

// qemusIn returns the processes of QEMU with a path below the folder in their command line.
func qemusIn(dir string) ([]string, error) {
	processes, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var found []string
	for _, process := range processes {
		args, err := process.CmdLine()
		if err != nil || len(args) == 0 {
			continue // it has ended
		}
		if strings.Contains(filepath.Base(args[0]), "qemu") && strings.Contains(strings.Join(args, " "), dir) {
			found = append(found, fmt.Sprintf("process %d", process.PID))
		}
	}
	return found, nil
}
