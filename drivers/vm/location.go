package vm

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
)

// Endpoint returns a name for the cluster of a configuration: a digest of its URL and of the certificates that the
// server must have.
func Endpoint(config *rest.Config) string {
	return "endpoint-" + hashOf(config.Host, string(config.CAData), config.CAFile, config.ServerName)
}

// sameFor is how long the name of a cluster is cached. The same kubeconfig may lead to another cluster later.
const sameFor = time.Minute

// infrastructure is a cluster with VirtualMachines.
type infrastructure struct {
	client.WithWatch
	// endpoint is the name of the cluster if its UID cannot be read.
	endpoint string
	// pageSize is the number of objects per response to a list.
	pageSize int64

	mu    sync.Mutex
	uid   string // UID of the namespace kube-system; empty if it cannot be read
	until time.Time
}

// names returns the names of the cluster, the one to record first. The UID of the namespace kube-system stays the
// same with another endpoint and after a restore. If the driver cannot read it, the endpoint is the name.
func (i *infrastructure) names(ctx context.Context) ([]string, error) {
	uid, err := i.readUID(ctx)
	switch {
	case err != nil:
		return nil, err
	case uid == "":
		return []string{i.endpoint}, nil
	}
	return []string{uid, i.endpoint}, nil
}

func (i *infrastructure) readUID(ctx context.Context) (string, error) {
	i.mu.Lock()
	uid, until := i.uid, i.until
	i.mu.Unlock()
	if time.Now().Before(until) {
		return uid, nil
	}
	system := &corev1.Namespace{}
	err := i.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, system)
	if err != nil && !unreadable(err) {
		return "", err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.uid, i.until = string(system.UID), time.Now().Add(sameFor)
	return i.uid, nil
}

func unreadable(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || meta.IsNoMatchError(err)
}

// location is the location where a creation started.
type location struct {
	infrastructure, namespace, cluster, installation string
}

// String returns the value of driver.AnnotationLocation.
func (l location) String() string {
	return strings.Join([]string{l.infrastructure, l.namespace, l.cluster, l.installation}, "/")
}

// parseLocation returns the zero value for a text that no driver wrote.
func parseLocation(text string) location {
	parts := strings.Split(text, "/")
	if len(parts) != 4 || slices.Contains(parts, "") || len(validation.IsDNS1123Label(parts[1])) > 0 {
		return location{}
	}
	return location{parts[0], parts[1], parts[2], parts[3]}
}

const identifying = "cannot identify the infrastructure cluster"

// LocateMachine implements driver.Locator. A location consists of the infrastructure cluster, the namespace, the
// cluster in the tags, and the installation, which is part of the names of VMs.
func (d *Driver) LocateMachine(ctx context.Context, req *driver.LocateMachineRequest) (*driver.LocateMachineResponse, error) {
	ctx, end := d.budget.begin(ctx)
	defer end()
	c, err := d.read(request{req.Machine, req.MachineClass, req.Secret, parseToFind})
	if err != nil {
		return nil, err
	}
	begun, names, err := d.begun(ctx, c, req.Machine)
	switch {
	case err != nil:
		return nil, coded(identifying, err)
	case begun != (location{}):
		return &driver.LocateMachineResponse{Location: begun.String()}, nil
	}
	here := location{names[0], c.key.Namespace, c.tagged, hashOf(d.options.Installation)}
	return &driver.LocateMachineResponse{Location: here.String()}, nil
}

// begun returns the location where the creation of the machine's VM started, and the names of the infrastructure
// cluster. The location is the zero value if it is unknown or not in the cluster of the call.
func (d *Driver) begun(ctx context.Context, c call, machine *v1alpha1.Machine) (location, []string, error) {
	names, err := c.cluster.names(ctx)
	if err != nil {
		return location{}, nil, err
	}
	at := parseLocation(driver.Location(machine))
	if !slices.Contains(names, at.infrastructure) || at.installation != hashOf(d.options.Installation) {
		return location{}, names, nil
	}
	return at, names, nil
}

// lookWhereBegun directs a call to the location where the creation of the machine's VM started, if that is in the
// cluster of the call. If the machine has a provider ID, the call already uses its location.
func (d *Driver) lookWhereBegun(ctx context.Context, c *call, machine *v1alpha1.Machine) error {
	if c.providerID != "" || driver.Location(machine) == "" {
		return nil
	}
	begun, _, err := d.begun(ctx, *c, machine)
	switch {
	case err != nil:
		return coded(identifying, err)
	case begun == (location{}):
		return nil
	}
	c.key.Namespace, c.tagged = begun.namespace, begun.cluster
	return nil
}
