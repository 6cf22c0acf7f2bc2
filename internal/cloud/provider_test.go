package cloud

import (
	"context"
	"errors"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fakeclient"
)

const (
	vms       = "vms"
	namespace = types.UID("6f1c2b1e-0000-4000-8000-000000000001") // of vms
)

// clusters are the clusters of a test. The cache of the infrastructure cluster is its API server, unless a test replaces it.
type clusters struct {
	*Provider
	infrastructure client.Client
	workload       *kubefake.Clientset
	// fail, if set, is the result of each read from the API server of the infrastructure cluster, or failVMs of each read
	// of a VirtualMachine. Reads from the cache succeed.
	fail, failVMs error
}

// workload and scheme are shared, because they are expensive to create.
var (
	workload = sync.OnceValue(func() *kubefake.Clientset { return kubefake.NewClientset() })
	scheme   = sync.OnceValue(func() *runtime.Scheme {
		scheme := runtime.NewScheme()
		if err := errors.Join(clientgoscheme.AddToScheme(scheme), vmv1alpha1.AddToScheme(scheme)); err != nil {
			panic(err) // a duplicate kind
		}
		return scheme
	})
)

func newClusters(t *testing.T, objects ...runtime.Object) *clusters {
	t.Helper()
	c := &clusters{workload: workload()}
	builder := fakeclient.NewBuilder(scheme()).WithStatusSubresource(&corev1.Service{}).
		WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: vms, UID: namespace}})
	for name, of := range indexes {
		builder = builder.WithIndex(&vmv1alpha1.VirtualMachine{}, name, of)
	}
	cache := builder.WithRuntimeObjects(objects...).Build()
	c.infrastructure = interceptor.NewClient(cache, interceptor.Funcs{
		Get: func(ctx context.Context, next client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			if _, isVM := object.(*vmv1alpha1.VirtualMachine); isVM && c.failVMs != nil {
				return c.failVMs
			}
			if c.fail != nil {
				return c.fail
			}
			return next.Get(ctx, key, object, opts...)
		},
	})
	c.Provider = New(Options{Cache: cache, Infrastructure: c.infrastructure, Workload: c.workload, Namespace: vms, Cluster: "demo"})
	return c
}

const uuid = "0b4c3f6e-1111-4111-8111-000000000001"

// newVM returns a VM of the cluster demo.
func newVM(name, uuid string) *vmv1alpha1.VirtualMachine {
	vm := &vmv1alpha1.VirtualMachine{}
	vm.Namespace, vm.Name, vm.Spec.UUID = vms, name, uuid
	vm.Labels = map[string]string{LabelCluster: "demo"}
	vm.Status.Addresses = []string{"10.77.0.16"}
	return vm
}

// newNode returns a Node that waits for its initialization.
func newNode(name string) *corev1.Node {
	node := &corev1.Node{}
	node.Name, node.UID = name, types.UID(name)
	node.Spec.Taints = []corev1.Taint{{Key: cloudproviderapi.TaintExternalCloudProvider, Value: "true", Effect: corev1.TaintEffectNoSchedule}}
	return node
}

// initialized returns a Node as the controllers leave it.
func initialized(node *corev1.Node, vm string) *corev1.Node {
	node.Spec.Taints = nil
	node.Spec.ProviderID = "millwright:///" + vms + "/" + uuid
	node.Labels = map[string]string{LabelVM: vm, LabelInfrastructure: string(namespace)}
	return node
}
