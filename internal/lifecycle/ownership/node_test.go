package ownership_test

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
)

var errUnreadable = errors.New("unreadable")

// unreadable returns a cache whose reads all fail.
func unreadable(t *testing.T) client.Reader {
	t.Helper()
	return interceptor.NewClient(cache(t).(client.WithWatch), interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return errUnreadable
		},
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return errUnreadable
		},
	})
}

func TestStrangeNode(t *testing.T) {
	t.Parallel()
	const clusterAPI = "cluster.x-k8s.io/machine"
	for name, tc := range map[string]struct {
		providerID string
		created    int64 // the Machine is created at 5
		id, label  string
		annotation string
		strange    bool
	}{
		"same provider ID":                           {providerID: providerID, created: 1, id: providerID, annotation: "capi"},
		"label of the Machine":                       {providerID: providerID, created: 1, label: "ours", annotation: "capi"},
		"label of the Machine, which has no VM":      {created: 1, id: providerID, label: "ours"},
		"node of Cluster API":                        {providerID: providerID, created: 9, annotation: "capi", strange: true},
		"newer node without provider ID":             {providerID: providerID, created: 9},
		"newer node with another provider ID":        {providerID: providerID, created: 9, id: "other:///m1"},
		"older node with another provider ID":        {providerID: providerID, created: 1, id: "other:///m1", strange: true},
		"no VM, newer node with a provider ID":       {created: 9, id: providerID, strange: true},
		"no VM, newer node without provider ID":      {created: 9},
		"no VM, older node without provider ID":      {created: 1, strange: true},
		"label of a Machine that exists":             {providerID: providerID, created: 9, label: "theirs"},
		"label of a Machine that does not exist":     {providerID: providerID, created: 9, label: "gone", strange: true},
		"older node, label of a Machine that exists": {providerID: providerID, created: 1, label: "theirs", strange: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", CreationTimestamp: metav1.Unix(tc.created, 0)}, Spec: corev1.NodeSpec{ProviderID: tc.id}}
			if tc.label != "" {
				node.Labels = map[string]string{v1alpha1.LabelKeyMachineName: tc.label}
			}
			if tc.annotation != "" {
				node.Annotations = map[string]string{clusterAPI: tc.annotation}
			}
			ours := machine("ours", 5, tc.providerID)
			got, err := ownership.StrangeNode(t.Context(), cache(t, ours, machine("theirs", 1, "")), ours, tc.providerID, node)
			if err != nil || (got != "") != tc.strange {
				t.Errorf("%q, %v; want a reason: %t", got, err, tc.strange)
			}
		})
	}
}

// TestStrangeNode_UnreadableMachine checks that a failed read does not count as an existing Machine.
func TestStrangeNode_UnreadableMachine(t *testing.T) {
	t.Parallel()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: map[string]string{v1alpha1.LabelKeyMachineName: "theirs"}, CreationTimestamp: metav1.Unix(9, 0)}}
	if got, err := ownership.StrangeNode(t.Context(), unreadable(t), machine("ours", 5, providerID), providerID, node); !errors.Is(err, errUnreadable) {
		t.Errorf("%q, %v", got, err)
	}
}
