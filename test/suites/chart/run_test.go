package chart

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// waitTimeout limits operations that take seconds.
const waitTimeout = env.WaitTimeout

// apply does what "kubectl apply --server-side" does. It returns the Deployments.
func apply(t *testing.T, c *env.Cluster, all []*unstructured.Unstructured) []*appsv1.Deployment {
	t.Helper()
	strict := client.WithFieldValidation(c.Client, metav1.FieldValidationStrict)
	var deployments []*appsv1.Deployment
	for _, object := range all {
		if err := strict.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("test"), client.ForceOwnership); err != nil {
			t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
		}
		if object.GetKind() == "Deployment" {
			deployment := &appsv1.Deployment{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, deployment); err != nil {
				t.Fatal(err)
			}
			deployments = append(deployments, deployment)
		}
	}
	return deployments
}

// TestChart_ObjectsAreAdmitted checks that an API server accepts every object of the manifests, and the Pods with the
// Pod Security level "restricted".
func TestChart_ObjectsAreAdmitted(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.New(t)
	if err := controlplane.InstallCRDs(t.Context(), e.Admin, os.DirFS("testdata/crds")); err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[string][]string{
		"one-pod":         {"machine-controller-manager"},
		"two-deployments": {"machine-controller-manager", "machine-controller"},
		"whole":           {"machine-controller-manager"},
	} {
		t.Run(mode, func(t *testing.T) {
			var names []string
			for _, deployment := range apply(t, e.Cluster, kustomized(t, mode, append(optional[:len(optional):len(optional)], "warnings/"+mode)...)) {
				names = append(names, deployment.Name)
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "pod-", Labels: deployment.Spec.Template.Labels}, Spec: deployment.Spec.Template.Spec}
				if err := e.Client.Create(t.Context(), pod, client.DryRunAll); err != nil {
					t.Error(err)
				}
				for _, container := range pod.Spec.Containers {
					if !*container.SecurityContext.ReadOnlyRootFilesystem {
						t.Errorf("%s may write to its root", container.Name)
					}
				}
			}
			gomega.NewWithT(t).Expect(names).To(gomega.ConsistOf(want))
		})
	}
	apply(t, e.Cluster, kustomized(t, "target"))
	apply(t, e.Cluster, kustomized(t, "target-two-deployments"))
	apply(t, e.Cluster, charted(t, e.Namespace, with("one-pod", nil)))
}

// TestChart_InstalledManagerCreatesMachines runs the programs as the chart's Deployments specify, with the token of the
// ServiceAccount and thus the installed permissions. A MachineDeployment is scaled and deleted.
func TestChart_InstalledManagerCreatesMachines(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for _, mode := range []string{"one-pod", "two-deployments", "whole"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			i := &installation{Env: env.New(t), t: t}
			all := charted(t, i.Namespace, values{"mode": mode, "driver": "sim", "image": values{"repository": "registry.example.com/millwright"}})
			for _, deployment := range apply(t, i.Cluster, all) {
				kubeconfig := i.kubeconfig(deployment.Spec.Template.Spec.ServiceAccountName)
				for _, container := range deployment.Spec.Template.Spec.Containers {
					i.start(deployment.Name+"-"+container.Name, container, kubeconfig)
				}
			}
			i.makesMachines()
		})
	}
}

// installation is an installation in a namespace.
type installation struct {
	*env.Env
	t *testing.T
}

// kubeconfig returns a kubeconfig with the token of a ServiceAccount, as in its Pod.
func (i *installation) kubeconfig(account string) string {
	i.t.Helper()
	of := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: i.Namespace, Name: account}}
	request := &authenticationv1.TokenRequest{}
	if err := i.Client.SubResource("token").Create(i.t.Context(), of, request); err != nil {
		i.t.Fatal(err)
	}
	file := clientcmdapi.NewConfig()
	file.Clusters["test"] = &clientcmdapi.Cluster{Server: i.Admin.Host, CertificateAuthorityData: i.Admin.CAData}
	file.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: request.Status.Token}
	file.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	file.CurrentContext = "test"
	path := filepath.Join(i.t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		i.t.Fatal(err)
	}
	return path
}

// start runs a container's program, and waits for its probes. Outside of a Pod, the address of the API server and
// the port differ. places maps further parts of its flags to their replacements.
func (i *installation) start(name string, container corev1.Container, kubeconfig string, places ...string) *program.Process {
	i.t.Helper()
	port, err := i.ControlPlane.PortFor(i.Namespace+"-"+name, 0)
	if err != nil {
		i.t.Fatal(err)
	}
	inside := strings.NewReplacer(append(places, "inClusterConfig", kubeconfig, "--target-kubeconfig=", "--target-kubeconfig="+kubeconfig, "$(POD_NAMESPACE)", i.Namespace)...)
	args := []string{strings.TrimPrefix(container.Command[len(container.Command)-1], "/")}
	for _, arg := range container.Args {
		args = append(args, inside.Replace(arg))
	}
	return i.startProbed(name, container, port, append(args, fmt.Sprintf("--port=%d", port)))
}

// startProbed starts a container's program with these arguments, and waits for its probes at a port.
func (i *installation) startProbed(name string, container corev1.Container, port int, args []string) *program.Process {
	i.t.Helper()
	process := program.StartOther(i.t, program.Command(context.Background(), args...))
	i.t.Cleanup(func() {
		process.Stop()
		if output := process.Output.String(); i.t.Failed() || strings.Contains(output, "forbidden") {
			i.t.Errorf("%s %q printed:\n%s", name, args, process.Output.Tail(50))
		}
	})
	for _, probe := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe} {
		url := fmt.Sprintf("http://127.0.0.1:%d%s", port, probe.HTTPGet.Path)
		i.eventually(func(g gomega.Gomega) {
			g.Expect(process.Done()).NotTo(gomega.BeClosed())
			request, err := http.NewRequestWithContext(i.t.Context(), http.MethodGet, url, nil)
			g.Expect(err).NotTo(gomega.HaveOccurred())
			response, err := http.DefaultClient.Do(request)
			g.Expect(err).NotTo(gomega.HaveOccurred())
			g.Expect(response.Body.Close()).To(gomega.Succeed())
			g.Expect(response.StatusCode).To(gomega.Equal(http.StatusOK), url)
		})
	}
	return process
}

func (i *installation) eventually(check func(gomega.Gomega)) {
	i.t.Helper()
	gomega.NewWithT(i.t).Eventually(check).WithTimeout(waitTimeout).WithPolling(50 * time.Millisecond).Should(gomega.Succeed())
}

// createPool creates a MachineDeployment of one Machine.
func (i *installation) createPool() *v1alpha1.MachineDeployment {
	i.t.Helper()
	meta := metav1.ObjectMeta{Namespace: i.Namespace, Name: "pool"}
	labels := map[string]string{"name": "pool"}
	deployment := &v1alpha1.MachineDeployment{ObjectMeta: meta}
	deployment.Spec.Replicas, deployment.Spec.Selector = 1, &metav1.LabelSelector{MatchLabels: labels}
	deployment.Spec.Template.Labels = labels
	deployment.Spec.Template.Spec.Class = v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "pool"}
	class := &v1alpha1.MachineClass{
		ObjectMeta: meta, Provider: "sim", SecretRef: &corev1.SecretReference{Namespace: i.Namespace, Name: "pool"},
		ProviderSpec: runtime.RawExtension{Raw: []byte(`{}`)},
	}
	secret := &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"userData": []byte("<<BOOTSTRAP_TOKEN>>")}}
	for _, object := range []client.Object{secret, class, deployment} {
		must(i.t, i.Client.Create(i.t.Context(), object))
	}
	return deployment
}

// makesMachines scales up a MachineDeployment to a running Machine, and deletes it.
func (i *installation) makesMachines() {
	i.t.Helper()
	deployment := i.createPool()
	machines := &v1alpha1.MachineList{}
	i.eventually(func(g gomega.Gomega) {
		g.Expect(i.Client.List(i.t.Context(), machines, client.InNamespace(i.Namespace))).To(gomega.Succeed())
		g.Expect(machines.Items).To(gomega.HaveLen(1))
		g.Expect(machines.Items[0].Status.CurrentStatus.Phase).To(gomega.Equal(v1alpha1.MachineRunning))
	})
	must(i.t, i.Client.Delete(i.t.Context(), deployment))
	i.eventually(func(g gomega.Gomega) {
		g.Expect(i.Client.List(i.t.Context(), machines, client.InNamespace(i.Namespace))).To(gomega.Succeed())
		g.Expect(machines.Items).To(gomega.BeEmpty())
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
