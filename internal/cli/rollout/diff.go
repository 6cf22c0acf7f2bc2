package rollout

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/manifest"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
	"github.com/millwright-dev/millwright/internal/observe/rollout/diff"
)

func newDiff() *cobra.Command {
	file := ""
	cmd := add(&cobra.Command{
		Use:   "diff NAME",
		Short: "Show which machines a change would replace",
		Long: `Show which machines a change of a MachineDeployment would replace, without changing anything.

With -f, the command shows what "kubectl apply" of the file would change in the
MachineDeployment, and in the MachineClasses that the file contains.

Without -f, the command shows what the current template changes: the remainder of a rollout in
progress, or what a paused rollout will do. For each machine whose class has an update strategy,
it also shows whether the VM is updated for the class, is replaced, or does not change.`,
		Example: `  millwright rollout diff pool -f pool.yaml
  millwright rollout diff pool`,
	}, func(cmd *cobra.Command, d deployment) error { return d.diff(cmd, file) })
	cmd.Flags().StringVarP(&file, "filename", "f", "", `file with the changed MachineDeployment or MachineClasses; "-" for standard input`)
	return cmd
}

// diff prints what the objects of a file would change. If file is empty, it prints what the current template changes.
func (d deployment) diff(cmd *cobra.Command, file string) error {
	desired := manifests{}
	if file != "" {
		var err error
		if desired, err = readManifests(file, cmd.InOrStdin(), d.key); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), requestTimeout)
	defer cancel()
	facts, err := rollout.Read(ctx, d.Client, d.key)
	if err != nil {
		return err
	}
	for _, class := range desired.classes {
		if err := d.diffClass(ctx, cmd.OutOrStdout(), class); err != nil {
			return err
		}
	}
	becomes := facts.Deployment
	if desired.deployment != nil {
		becomes = facts.Deployment.DeepCopy()
		if err := applied(ctx, d.Client, desired.deployment, becomes); err != nil {
			return err
		}
	}
	found, err := diff.OfDeployment(facts, becomes, time.Now())
	if err != nil {
		return err
	}
	if err := show(cmd.OutOrStdout(), "machine deployment "+d.key.String(), found); err != nil || file != "" {
		return err
	}
	if err := section(cmd.OutOrStdout(), "VMs, compared with the class of the template", diff.OfClassChange(facts.ClassChange(time.Now()))); err != nil {
		return err
	}
	return d.diffVMs(ctx, cmd.OutOrStdout(), facts)
}

// diffVMs prints what each VM needs to match its MachineClass, for each class with machines that were compared with it.
func (d deployment) diffVMs(ctx context.Context, out io.Writer, facts rollout.Facts) error {
	noted := map[string]bool{}
	for _, machine := range facts.Machines {
		noted[machine.Spec.Class.Name] = noted[machine.Spec.Class.Name] || diff.Noted(machine)
	}
	for _, name := range slices.Sorted(maps.Keys(noted)) {
		class := &v1alpha1.MachineClass{}
		err := d.Client.Get(ctx, client.ObjectKey{Namespace: d.key.Namespace, Name: name}, class)
		if err != nil && !noted[name] || apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot read machine class %s: %w", name, err)
		}
		if err := section(out, "VMs of machine class "+d.key.Namespace+"/"+name, diff.OfVMs(class, facts.Machines)); err != nil {
			return err
		}
	}
	return nil
}

func (d deployment) diffClass(ctx context.Context, out io.Writer, desired *unstructured.Unstructured) error {
	key, class := client.ObjectKeyFromObject(desired), &v1alpha1.MachineClass{}
	err := d.Client.Get(ctx, key, class)
	if apierrors.IsNotFound(err) {
		return show(out, "machine class "+key.String(), diff.Diff{Verdict: []string{"The class is new: no machine uses it."}})
	}
	if err != nil {
		return fmt.Errorf("cannot read machine class %s: %w", key, err)
	}
	becomes := class.DeepCopy()
	if err := applied(ctx, d.Client, desired, becomes); err != nil {
		return err
	}
	machines := &v1alpha1.MachineList{}
	if err := d.Client.List(ctx, machines, client.InNamespace(key.Namespace)); err != nil {
		return fmt.Errorf("cannot list machines: %w", err)
	}
	found, err := diff.OfClass(class, becomes, machines.Items)
	if err != nil {
		return err
	}
	return show(out, "machine class "+key.String(), found)
}

func show(out io.Writer, of string, d diff.Diff) error {
	return section(out, of, d.Lines())
}

// section prints lines below a heading. It prints nothing if there are no lines.
func section(out io.Writer, heading string, lines []string) error {
	if len(lines) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(out, "%s:\n\n%s\n\n", heading, strings.Join(lines, "\n"))
	return err
}

// applied changes object to what "kubectl apply" of desired would make it, by a dry run on the API server.
func applied(ctx context.Context, c client.Client, desired *unstructured.Unstructured, object client.Object) error {
	last := cmp.Or(object.GetAnnotations()[corev1.LastAppliedConfigAnnotation], "{}")
	is, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return fmt.Errorf("cannot compare with the cluster: %w", err)
	}
	current, err := (&unstructured.Unstructured{Object: is}).MarshalJSON()
	if err != nil {
		return fmt.Errorf("cannot compare with the cluster: %w", err)
	}
	// kubectl records what it applies in an annotation. Without the annotation, the three-way merge would appear to
	// remove the annotations that other clients set.
	desired = desired.DeepCopy()
	annotations := desired.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[corev1.LastAppliedConfigAnnotation] = last
	desired.SetAnnotations(annotations)
	modified, err := desired.MarshalJSON()
	if err != nil {
		return fmt.Errorf("cannot compare with the cluster: %w", err)
	}
	patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch([]byte(last), modified, current)
	if err != nil {
		return fmt.Errorf("cannot compare %s with the configuration last applied: %w", desired.GetName(), err)
	}
	if err := c.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch), client.DryRunAll); err != nil {
		return fmt.Errorf("cannot apply %s %s in a dry run: %w", desired.GetKind(), desired.GetName(), err)
	}
	return nil
}

// manifests are the objects of a file.
type manifests struct {
	deployment *unstructured.Unstructured
	classes    []*unstructured.Unstructured
}

// readManifests reads the MachineDeployment key and the MachineClasses in its namespace from a file.
func readManifests(file string, in io.Reader, key types.NamespacedName) (manifests, error) {
	name := "standard input"
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return manifests{}, err
		}
		defer func() { _ = opened.Close() }() // read only
		in, name = opened, file
	}
	var all manifests
	objects, err := manifest.Objects(in)
	if err != nil {
		return manifests{}, fmt.Errorf("%s: %w", name, err)
	}
	for _, text := range objects {
		object := &unstructured.Unstructured{}
		if yaml.Unmarshal(text, &object.Object) != nil {
			return manifests{}, fmt.Errorf("%s: not valid YAML", name)
		}
		if object.GetAPIVersion() != v1alpha1.SchemeGroupVersion.String() || cmp.Or(object.GetNamespace(), key.Namespace) != key.Namespace {
			continue
		}
		object.SetNamespace(key.Namespace)
		switch {
		case object.GetKind() == v1alpha1.MachineClassKind:
			all.classes = append(all.classes, object)
		case object.GetKind() == "MachineDeployment" && object.GetName() == key.Name:
			all.deployment = object
		}
	}
	if all.deployment == nil && len(all.classes) == 0 {
		return manifests{}, fmt.Errorf("%s: contains neither MachineDeployment %s nor a MachineClass in namespace %s", name, key.Name, key.Namespace)
	}
	return all, nil
}
