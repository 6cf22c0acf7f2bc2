package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
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

// awaitNothingLeft checks that nothing is left of any machine: no object, no disk and no
// process. What ends a moment later than the Machine, such as a volume, is waited for.
func (d *demo) awaitNothingLeft(ctx context.Context) error {
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for {
		left, err := d.leftovers(ctx)
		if err != nil {
			return err
		}
		if len(left) == 0 {
			fmt.Fprintln(d.stdout, "Nothing is left: no machine, virtual machine, pod, node, volume, disk or process.")
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("left over: %s: %w", strings.Join(left, ", "), ctx.Err())
		}
	}
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
	return append(left, processesIn(filepath.Join(d.mode.plane.Dir(), "hosts"))...), nil
}

// leftObjects finds objects that only machines leave.
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

// processesIn finds processes with a path below the folder in their command line, which
// are hypervisors' QEMUs; the hosts themselves name folders of hosts only.
func processesIn(dir string) []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is right
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		args := strings.Split(string(text), "\x00")
		if strings.Contains(filepath.Base(args[0]), "qemu") && strings.Contains(string(text), dir) {
			found = append(found, "process "+filepath.Base(filepath.Dir(file)))
		}
	}
	return found
}
