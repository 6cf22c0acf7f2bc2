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

// setup is where a manager finds its clusters.
type setup string

const (
	// together: one cluster is both control and target.
	together setup = "together"
	// apart: they are two.
	apart setup = "apart"
	// noTarget: there is only a control cluster, and VMs join nothing.
	noTarget setup = "no target"
)

// lane is where runs take place, one after another. They have the nodes of a control
// plane for themselves, since every manager looks at all of them.
type lane struct {
	nodes *env.Cluster
	// other is where a run that has its clusters apart declares its Machines. Other runs
	// may be there: a manager looks at one namespace.
	other *env.Cluster
}

// clusters are a run's share of the control and the target cluster; the latter is nil if
// there is none.
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

// share is a cluster with a namespace of its own.
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
	// clusterAPIRole is instead of both where Cluster API is served.
	clusterAPIRole = "config/rbac/capi-role.yaml"
)

// users are the manager's identities in its clusters: it has the roles that are shipped,
// and no others. The second is nil if the first is for both.
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
