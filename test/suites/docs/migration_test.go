package docs

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
)

// machines is the namespace of MCM. The manager of local mode ignores it.
const machines = "machines"

// migrate runs the page about the migration from MCM and back, in a namespace with MCM's Deployment and a pool as
// MCM left it. MCM's own containers do nothing.
func (p *place) migrate(t *testing.T) {
	config, err := clientcmd.BuildConfigFromFlags("", p.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: env.NewScheme()})
	if err != nil {
		t.Fatal(err)
	}
	must(t, c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: machines}}))
	directory := t.TempDir()
	cloud, err := sim.OpenCloud(directory, sim.CloudOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, cloud.Close()) })
	restoreFleet(t, c, cloud)
	(&kubelet{t: t, c: c, flags: []string{"--sim-dir=" + directory}, running: map[types.UID][]*program.Process{}}).start()
	must(t, c.Create(t.Context(), p.deployment(t)))

	t.Setenv("NAMESPACE", machines)
	t.Setenv("IMAGE", ourImage)
	t.Setenv("DRIVER", "sim")
	t.Setenv("POOL", "pool")
	p.run(t, "get-started/from-mcm.md")

	vms, err := cloud.VMs()
	must(t, err)
	if len(vms) != 3 {
		t.Errorf("%d VMs are left", len(vms))
	}
	fitForMCM(t, c)
}

// fitForMCM checks that MCM can continue: its leases are free, and its Machines have their original state.
func fitForMCM(t *testing.T, c client.Client) {
	t.Helper()
	gomega.NewWithT(t).Eventually(func() (free []string) {
		leases := &coordinationv1.LeaseList{}
		must(t, c.List(t.Context(), leases, client.InNamespace(machines)))
		for _, lease := range leases.Items {
			if holder := lease.Spec.HolderIdentity; holder == nil || *holder == "" {
				free = append(free, lease.Name)
			}
		}
		return free
	}).WithTimeout(waitTimeout).Should(gomega.ConsistOf("machine-controller", "machine-controller-manager"), "these leases are free")
	all := &v1alpha1.MachineList{}
	must(t, c.List(t.Context(), all, client.InNamespace(machines)))
	if len(all.Items) != 3 {
		t.Errorf("%d Machines", len(all.Items))
	}
	for _, machine := range all.Items {
		if machine.Status.CurrentStatus.Phase != v1alpha1.MachineRunning || !slices.Equal(machine.Finalizers, []string{v1alpha1.FinalizerMCM}) {
			t.Errorf("%s is %s, with the finalizers %v", machine.Name, machine.Status.CurrentStatus.Phase, machine.Finalizers)
		}
	}
}

// deployment returns MCM's Deployment for this cluster.
func (p *place) deployment(t *testing.T) *appsv1.Deployment {
	t.Helper()
	text, err := os.ReadFile("testdata/mcm.yaml")
	must(t, err)
	deployment := &appsv1.Deployment{}
	must(t, yaml.UnmarshalStrict(bytes.ReplaceAll(text, []byte("=KUBECONFIG"), []byte("="+p.kubeconfig())), deployment))
	deployment.Namespace = machines
	return deployment
}

// restoreFleet creates the pool of a recording of MCM, with its VMs. It uses another driver, because that of the
// recording is not available.
func restoreFleet(t *testing.T, c client.Client, cloud *sim.Cloud) {
	t.Helper()
	text, err := os.ReadFile(filepath.FromSlash("../../../api/machine/v1alpha1/testdata/mcm/02-running.json"))
	must(t, err)
	list := &unstructured.UnstructuredList{}
	must(t, json.Unmarshal(text, list))
	uids := map[types.UID]types.UID{}
	for _, kind := range []string{"Secret", "MachineClass", "Node", "MachineDeployment", "MachineSet", "Machine"} {
		for i := range list.Items {
			if object := &list.Items[i]; object.GetKind() == kind && ofThePool(object.GetName()) {
				restore(t, c, object, uids)
			}
			if name := list.Items[i].GetName(); kind == "Machine" && list.Items[i].GetKind() == kind && ofThePool(name) {
				_, err := cloud.Add(sim.VM{ProviderID: "fake:///" + name, Namespace: machines, Machine: name, Pool: machines + "/c1", Node: &sim.NodePlan{Joined: true}})
				must(t, err)
			}
		}
	}
}

func ofThePool(name string) bool {
	return name == "c1" || name == "s1" || name == "pool" || strings.HasPrefix(name, "pool-")
}

// restore creates an object with its recorded owners and status.
func restore(t *testing.T, c client.Client, object *unstructured.Unstructured, uids map[types.UID]types.UID) {
	t.Helper()
	was, status := object.GetUID(), object.Object["status"]
	for _, field := range []string{"uid", "resourceVersion", "generation", "creationTimestamp"} {
		unstructured.RemoveNestedField(object.Object, "metadata", field)
	}
	owners := object.GetOwnerReferences()
	for i := range owners {
		owners[i].UID = uids[owners[i].UID]
	}
	object.SetOwnerReferences(owners)
	switch object.GetKind() {
	case "Node":
	case "MachineClass":
		object.Object["provider"], object.Object["providerSpec"] = "sim", map[string]any{}
		must(t, unstructured.SetNestedField(object.Object, machines, "secretRef", "namespace"))
		object.SetNamespace(machines)
	default:
		object.SetNamespace(machines)
	}
	must(t, c.Create(t.Context(), object))
	uids[was] = object.GetUID()
	if status != nil {
		patch, err := json.Marshal(map[string]any{"status": status})
		must(t, err)
		must(t, c.Status().Patch(t.Context(), object, client.RawPatch(types.MergePatchType, patch)))
	}
}

// ourImage is the image whose containers a kubelet really runs.
const ourImage = "millwright"

// kubelet runs the Pods of a namespace: the containers of our image as processes, and no others. A Pod is Ready
// once its processes have logged something. Before that, a signal would terminate them with a nonzero status.
type kubelet struct {
	t *testing.T
	c client.WithWatch
	// flags are flags of the driver that the page does not mention.
	flags   []string
	running map[types.UID][]*program.Process
}

// start runs it until the end of the test.
func (k *kubelet) start() {
	k.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	pods, err := k.c.Watch(ctx, &corev1.PodList{}, client.InNamespace(machines))
	must(k.t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for event := range pods.ResultChan() {
			k.handle(ctx, event)
		}
		for _, processes := range k.running {
			halt(processes)
		}
	}()
	k.t.Cleanup(func() {
		stop()
		<-ended
	})
}

func (k *kubelet) handle(ctx context.Context, event watch.Event) {
	pod, ok := event.Object.(*corev1.Pod)
	switch {
	case !ok:
	case event.Type == watch.Deleted:
		halt(k.running[pod.UID])
		delete(k.running, pod.UID)
	case k.running[pod.UID] == nil && pod.DeletionTimestamp == nil:
		k.running[pod.UID] = k.run(pod)
		ready := pod.DeepCopy()
		ready.Status.Phase = corev1.PodRunning
		ready.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		if err := client.IgnoreNotFound(k.c.Status().Patch(ctx, ready, client.MergeFrom(pod))); err != nil && ctx.Err() == nil {
			k.t.Error(err)
		}
	}
}

func (k *kubelet) run(pod *corev1.Pod) []*program.Process {
	processes := []*program.Process{}
	for _, container := range pod.Spec.Containers {
		if container.Image != ourImage {
			continue
		}
		args := slices.Concat(container.Command[1:], container.Args)
		if container.Name == "machine-controller" {
			args = append(args, k.flags...)
		}
		command := program.Command(context.Background(), args...)
		command.Args[0] = container.Command[0]
		process := program.StartOther(k.t, command)
		processes = append(processes, process)
		gomega.NewWithT(k.t).Eventually(process.Output.String).WithTimeout(waitTimeout).ShouldNot(gomega.BeEmpty())
	}
	return processes
}

func halt(processes []*program.Process) {
	for _, process := range processes {
		process.Stop()
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
