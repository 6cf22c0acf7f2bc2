package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/local/archives"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/internal/observe/follow"
)

// demo runs a local cluster and shows how machines become nodes.
type demo struct {
	upFlags
	examples string
	exit     bool
	timeout  time.Duration

	stdout   io.Writer
	mode     *local
	client   client.Client
	follower *follow.Follower
	display  display
	// service is what the guests' Pods serve; only with --guest full.
	service *service
}

// NewDemo returns "millwright demo".
func NewDemo(release archives.Set) *cobra.Command {
	return (&demo{upFlags: upFlags{release: release}}).command()
}

func (d *demo) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a local cluster and show how machines become nodes",
		Long: `Run a local cluster as "up" does, apply the examples, and show how machines become nodes.
With --exit, then scale down, delete everything, check that nothing remains, and exit;
the first failure is an error.

With --guest full the nodes run Pods that serve HTTP. Instead of scaling, all machines are replaced by
machines of a new class while requests are sent to the Service. At the end, the number of successful
requests is printed; a failed request is an error.`,
		Example: `  millwright demo
  millwright demo --guest full --exit`,
		Args: args.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d.stdout = cmd.OutOrStdout()
			d.setDefaults(cmd.Flags())
			return d.run(cmd.Context(), d.stdout, cmd.ErrOrStderr(), d.play)
		},
	}
	d.addFlags(cmd)
	set := cmd.Flags()
	set.StringVar(&d.examples, "examples", "", "directory with the manifests to apply; defaults to the examples in --dir")
	set.BoolVar(&d.exit, "exit", false, "scale down, delete everything, check that nothing remains, and exit")
	set.DurationVar(&d.timeout, "timeout", 5*time.Minute, "timeout of each step; with --guest full, defaults to 30m")
	args.Section(set, "demo")
	return cmd
}

// setDefaults sets the defaults that differ for full guests, which take longer.
func (d *demo) setDefaults(given *pflag.FlagSet) {
	if d.guest != guestFull {
		return
	}
	if !given.Changed("timeout") {
		d.timeout = 30 * time.Minute
	}
}

func (d *demo) play(ctx context.Context, mode *local) error {
	if err := d.prepare(ctx, mode); err != nil {
		return explainCancel(ctx, err)
	}
	for _, act := range d.acts() {
		if err := d.within(ctx, act); err != nil {
			return explainCancel(ctx, err)
		}
	}
	if !d.exit {
		d.explainHowToContinue()
		<-ctx.Done()
	}
	return nil
}

// acts returns the steps of the demo in their order.
func (d *demo) acts() []func(context.Context) error {
	acts := []func(context.Context) error{d.apply, d.awaitSettled}
	remove := []func(context.Context) error{d.scaleDown, d.awaitSettled}
	if d.guest == guestFull {
		acts = append(acts, d.awaitService, d.rollUnderLoad)
		remove = []func(context.Context) error{d.deletePods}
	}
	acts = append(acts, d.show)
	if d.exit {
		acts = append(append(acts, remove...), d.deleteAll, d.awaitNothingLeft)
	}
	return acts
}

func (d *demo) prepare(ctx context.Context, mode *local) error {
	d.mode = mode
	d.display.out = d.stdout
	d.display.restart()
	config := mode.plane.RESTConfig()
	config.UserAgent = "millwright-demo"
	var err error
	if d.client, err = connect.NewClient(config); err != nil {
		return err
	}
	kinds := []client.Object{&v1alpha1.MachineDeployment{}, &v1alpha1.Machine{}, &vmv1alpha1.VirtualMachine{}, &corev1.Node{}}
	if d.guest == guestFull {
		kinds = append(kinds, &appsv1.Deployment{}, &corev1.Pod{})
	}
	d.follower, err = follow.Start(ctx, config, cache.Options{Scheme: d.client.Scheme()}, kinds...)
	if err != nil || !d.exit {
		return err
	}
	return d.refuseForeign(ctx)
}

// refuseForeign returns an error if machines exist already, since --exit deletes everything.
func (d *demo) refuseForeign(ctx context.Context) error {
	there, err := readObjects(ctx, d.follower)
	if err != nil {
		return err
	}
	if n := len(there.deployments) + len(there.machines) + len(there.vms); n > 0 {
		return fmt.Errorf("--exit deletes everything, but %[2]s already has %[1]d machines, deployments and virtual machines; choose another --dir or delete them", n, d.dir)
	}
	return nil
}

// within limits the time of a step.
func (d *demo) within(ctx context.Context, act func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	err := act(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("timed out after %s: %w", d.timeout, err)
	}
	return err
}

func (d *demo) apply(ctx context.Context) error {
	examples := cmp.Or(d.examples, d.mode.examplesDir())
	fmt.Fprintf(d.stdout, "Applying %s ...\n", examples)
	if err := controlplane.Apply(ctx, d.mode.plane.RESTConfig(), os.DirFS(examples), "*.yaml", localNamespace); err != nil {
		return fmt.Errorf("cannot apply %s: %w", examples, err)
	}
	return nil
}

// awaitSettled shows the machines until all deployments have their desired replicas.
func (d *demo) awaitSettled(ctx context.Context) error {
	begin := time.Now()
	var last objects
	err := d.showUntil(ctx, func(seen objects) bool {
		last = seen
		return len(seen.deployments) > 0 && seen.settled()
	})
	if err != nil {
		return fmt.Errorf("waiting for the nodes: %w", err)
	}
	fmt.Fprintf(d.stdout, "Ready nodes: %d of %d, after %.1f s.\n\n", last.readyNodes(), last.desired(), time.Since(begin).Seconds())
	return nil
}

// until returns when the condition holds.
func (d *demo) until(ctx context.Context, holds func(objects) bool) error {
	// Changes in quick succession are shown together.
	return d.follower.Until(ctx, 50*time.Millisecond, 0, func() (bool, error) {
		seen, err := readObjects(ctx, d.follower)
		return err == nil && holds(seen), err
	})
}

// showUntil shows the machines until the condition holds.
func (d *demo) showUntil(ctx context.Context, holds func(objects) bool) error {
	defer d.display.restart()
	var failed error
	err := d.until(ctx, func(seen objects) bool {
		failed = d.display.show(seen.lines())
		return failed != nil || holds(seen)
	})
	return errors.Join(err, failed)
}

// show prints the objects with kubectl.
func (d *demo) show(ctx context.Context) error {
	kinds := "machinedeployments,machinesets,machines,virtualmachines,nodes"
	if d.guest == guestFull {
		kinds += ",pods"
	}
	fmt.Fprintf(d.stdout, "$ kubectl get %s\n", kinds)
	// The user's cache may have the kinds of another cluster that had the same address.
	cache := filepath.Join(d.dir, "cache", "kubectl")
	command := exec.CommandContext(ctx, d.kubectl(), "--kubeconfig", d.mode.plane.Kubeconfig(), "--cache-dir", cache, "get", kinds)
	command.Stdout, command.Stderr = d.stdout, d.stdout
	if err := command.Run(); err != nil {
		return fmt.Errorf("kubectl get: %w", err)
	}
	return nil
}

func (d *demo) kubectl() string { return filepath.Join(d.mode.binaries, "kubectl") }

func (d *demo) explainHowToContinue() {
	deployment := "NAME"
	if seen, err := readObjects(context.Background(), d.follower); err == nil && len(seen.deployments) > 0 {
		deployment = seen.deployments[0].Name
	}
	fmt.Fprintf(d.stdout, `
How to continue, in another terminal:

  export KUBECONFIG=%[1]s
  %[2]s scale machinedeployment %[3]s --replicas 5
  %[4]s ui --dir %[5]s                  # shows everything in a browser
  %[4]s rollout restart --dir %[5]s %[3]s
  %[4]s rollout status --dir %[5]s %[3]s
  %[4]s vm list --dir %[5]s
  %[4]s vm console --dir %[5]s NAME     # Ctrl-] disconnects; type "help"
  %[4]s status --dir %[5]s

Ctrl-C stops everything; the data stays in %[5]s, and "%[4]s up --dir %[5]s" continues with it.
`, d.mode.plane.Kubeconfig(), d.kubectl(), deployment, d.mode.program, d.dir)
}

func (d *demo) scaleDown(ctx context.Context) error {
	deployments := &v1alpha1.MachineDeploymentList{}
	if err := d.client.List(ctx, deployments, client.InNamespace(localNamespace)); err != nil {
		return fmt.Errorf("cannot list the deployments: %w", err)
	}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":1}}`))
	for i := range deployments.Items {
		fmt.Fprintf(d.stdout, "\nScaling %s to 1 ...\n", deployments.Items[i].Name)
		if err := d.client.Patch(ctx, &deployments.Items[i], patch); err != nil {
			return fmt.Errorf("cannot scale %s: %w", deployments.Items[i].Name, err)
		}
	}
	// The cache may be older than the patches.
	return d.until(ctx, func(seen objects) bool { return seen.desired() == len(deployments.Items) })
}

// deleteAll deletes the deployments, and then the classes and secrets when they are no longer in use.
func (d *demo) deleteAll(ctx context.Context) error {
	fmt.Fprintln(d.stdout, "Deleting everything ...")
	for _, kind := range []client.Object{&v1alpha1.MachineDeployment{}, &v1alpha1.MachineClass{}} {
		if err := d.client.DeleteAllOf(ctx, kind, client.InNamespace(localNamespace)); err != nil {
			return fmt.Errorf("deleting: %w", err)
		}
	}
	err := d.showUntil(ctx, func(seen objects) bool { return len(seen.deployments) == 0 && len(seen.machines) == 0 })
	if err != nil {
		return fmt.Errorf("waiting for the machines to be deleted: %w", err)
	}
	if err := d.client.DeleteAllOf(ctx, &corev1.Secret{}, client.InNamespace(localNamespace)); err != nil {
		return fmt.Errorf("deleting: %w", err)
	}
	return nil
}

// awaitNothingLeft waits until no object, disk or process of any machine remains. A volume, for example, is
// removed shortly after its Machine.
func (d *demo) awaitNothingLeft(ctx context.Context) error {
	var left []string
	err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (_ bool, err error) {
		left, err = d.remains(ctx)
		return len(left) == 0, err
	})
	if err != nil && len(left) > 0 {
		return fmt.Errorf("these remain: %s: %w", strings.Join(left, ", "), err)
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(d.stdout, "Nothing remains: no machine, virtual machine, pod, node, volume, disk or process.")
	return nil
}

func (d *demo) remains(ctx context.Context) ([]string, error) {
	left, err := d.leftObjects(ctx)
	if err != nil {
		return nil, err
	}
	for _, pattern := range []string{"volumes/*", "hosts/*/pods/*"} {
		found, err := filepath.Glob(filepath.Join(d.mode.plane.Dir(), pattern))
		if err != nil {
			return nil, fmt.Errorf("cannot search for remaining files: %w", err)
		}
		left = append(left, found...)
	}
	processes, err := qemusIn(filepath.Join(d.mode.plane.Dir(), "hosts"))
	return append(left, processes...), err
}

// leftObjects returns the objects that exist only for machines. Pods of the cluster itself are pending until
// the next nodes join.
func (d *demo) leftObjects(ctx context.Context) ([]string, error) {
	var left []string
	for _, list := range []client.ObjectList{
		&v1alpha1.MachineSetList{}, &v1alpha1.MachineList{}, &v1alpha1.MachineClassList{}, &vmv1alpha1.VirtualMachineList{},
		&corev1.PodList{}, &corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{}, &corev1.NodeList{},
	} {
		if err := d.client.List(ctx, list); err != nil {
			return nil, fmt.Errorf("cannot search for remaining objects: %w", err)
		}
		err := meta.EachListItem(list, func(item runtime.Object) error {
			object := item.(client.Object)
			_, host := object.GetLabels()[vmv1alpha1.HostKey]
			if !host && !isWaiting(object) {
				left = append(left, strings.TrimPrefix(fmt.Sprintf("%T", object), "*v1.")+" "+object.GetName())
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("cannot search for remaining processes: %w", err)
		}
	}
	return left, nil
}

// isWaiting reports whether an object is a Pod of the cluster itself without a node.
func isWaiting(object client.Object) bool {
	pod, ok := object.(*corev1.Pod)
	return ok && pod.Namespace == metav1.NamespaceSystem && pod.Spec.NodeName == ""
}

// qemusIn returns the QEMU processes that have a path below the directory in their command lines.
func qemusIn(dir string) ([]string, error) {
	processes, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("cannot list processes: %w", err)
	}
	var found []string
	for _, process := range processes {
		args, err := process.CmdLine()
		if err != nil || len(args) == 0 {
			continue // it has exited
		}
		if strings.Contains(filepath.Base(args[0]), "qemu") && strings.Contains(strings.Join(args, " "), dir) {
			found = append(found, fmt.Sprintf("process %d", process.PID))
		}
	}
	return found, nil
}
