package crash

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/test/support/env"
)

// setup specifies the clusters of a manager.
type setup string

const (
	// together uses one cluster as both control and target cluster.
	together setup = "together"
	// apart uses two clusters.
	apart setup = "apart"
	// noTarget uses a control cluster only, so VMs join no cluster.
	noTarget setup = "no target"
)

// lane is where runs take place, one after another. A run has the nodes of a control plane for itself, because
// every manager reads all of them.
type lane struct {
	nodes *env.Cluster
	// other is the control cluster of runs with separate clusters. Other runs may use it too, because a manager
	// reads a single namespace.
	other *env.Cluster
}

// clusters is a run's share of the control and the target cluster. The target cluster may be nil.
func (l *lane) clusters(ctx context.Context, where setup) (control, target *env.Cluster, err error) {
	if where != apart {
		if control, err = share(ctx, l.nodes); err != nil || where == noTarget {
			return control, nil, err
		}
		return control, control, nil
	}
	if control, err = share(ctx, l.other); err != nil {
		return nil, nil, err
	}
	target, err = share(ctx, l.nodes)
	return control, target, err
}

// share is a cluster with a separate namespace.
func share(ctx context.Context, c *env.Cluster) (*env.Cluster, error) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "crash-"}}
	if err := c.Client.Create(ctx, namespace); err != nil {
		return nil, fmt.Errorf("creating a namespace: %w", err)
	}
	own := *c
	own.Namespace = namespace.Name
	return &own, nil
}

// The roles that are shipped for the manager.
const (
	controlRole = "config/rbac/control-role.yaml"
	targetRole  = "config/rbac/target-role.yaml"
	// clusterAPIRole replaces both roles if Cluster API is served.
	clusterAPIRole = "config/rbac/capi-role.yaml"
)

// users returns the manager's identities in its clusters, which have exactly the shipped roles. The second is nil
// if the first is used for both clusters.
func (s scenario) users(t *testing.T, control, target *env.Cluster) (inControl, inTarget *rest.Config) {
	t.Helper()
	if s.clusterAPI {
		return control.UserWith(t, clusterAPIRole), nil
	}
	switch target {
	case nil:
		return control.UserWith(t, controlRole), nil
	case control:
		return control.UserWith(t, controlRole, targetRole), nil
	default:
		return control.UserWith(t, controlRole), target.UserWith(t, targetRole)
	}
}
