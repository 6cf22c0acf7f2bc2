package plugin

import (
	"context"
	"encoding/json"
	"fmt"

	grpccodes "google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/lru"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	driverpb "github.com/millwright-dev/millwright/proto/driver"
)

// request is an operation with its objects. Objects that the operation does not need are nil.
type request struct {
	*driverpb.Operation
	machine *v1alpha1.Machine
	class   *v1alpha1.MachineClass
	secret  *corev1.Secret
}

// read reads the objects of an operation. Each call gets its own copies.
func (s *session) read(ctx context.Context, op *driverpb.Operation) (*request, error) {
	r := &request{Operation: op}
	if op.GetMachine() != nil {
		r.machine = &v1alpha1.Machine{}
		if err := decode("Machine", op.GetMachine(), r.machine); err != nil {
			return nil, err
		}
	}
	if op.GetMachineClass() != nil {
		raw, err := s.cache.class(ctx, op.GetMachineClass())
		if err != nil {
			return nil, fetching("MachineClass", err)
		}
		r.class = &v1alpha1.MachineClass{}
		if err := decode("MachineClass", raw, r.class); err != nil {
			return nil, err
		}
	}
	if op.GetSecret() == nil {
		return r, nil
	}
	secret, err := s.cache.secret(ctx, op)
	if err != nil {
		return nil, fetching("Secret", err)
	}
	r.secret = secret
	return r, nil
}

func decode(what string, raw []byte, into any) error {
	if err := json.Unmarshal(raw, into); err != nil {
		return status.WrapError(codes.Internal, fmt.Sprintf("cannot decode the %s that the manager sent: %v", what, err), err)
	}
	return nil
}

// fetching returns the error of an operation whose class or Secret could not be fetched. NotFound from the manager
// must not become NotFound of a VM.
func fetching(what string, err error) error {
	code := codes.Unavailable
	switch grpcstatus.Code(err) {
	case grpccodes.Canceled:
		code = codes.Canceled
	case grpccodes.DeadlineExceeded:
		code = codes.DeadlineExceeded
	case grpccodes.ResourceExhausted: // larger than the maximum message size
		code = codes.Internal
	}
	return status.WrapError(code, fmt.Sprintf("cannot fetch the %s from the manager: %s", what, grpcstatus.Convert(err).Message()), err)
}

// cacheSize is the maximum number of cached classes, and of cached Secrets.
const cacheSize = 128

// cache caches the classes and Secrets of one session by version.
type cache struct {
	client           driverpb.InfraClient
	classes, secrets *lru.Cache
}

type version struct{ namespace, name, version string }

func newCache(client driverpb.InfraClient) *cache {
	return &cache{client: client, classes: lru.New(cacheSize), secrets: lru.New(cacheSize)}
}

func (c *cache) class(ctx context.Context, meta *driverpb.MachineClassMeta) ([]byte, error) {
	key := version{meta.GetNamespace(), meta.GetName(), meta.GetVersion()}
	if found, ok := c.classes.Get(key); ok {
		if raw, ok := found.([]byte); ok {
			return raw, nil
		}
	}
	class, err := c.client.GetMachineClass(ctx, meta)
	if err != nil {
		return nil, err
	}
	c.classes.Add(key, class.GetObject())
	return class.GetObject(), nil
}

// secret returns the Secret of an operation. It does not cache the Secret of a creation, which contains the user
// data of one machine.
func (c *cache) secret(ctx context.Context, op *driverpb.Operation) (*corev1.Secret, error) {
	meta := op.GetSecret()
	key := version{meta.GetNamespace(), meta.GetName(), meta.GetVersion()}
	if found, ok := c.secrets.Get(key); ok {
		if secret, ok := found.(*corev1.Secret); ok {
			return secret.DeepCopy(), nil
		}
	}
	response, err := c.client.GetSecret(ctx, meta)
	if err != nil {
		return nil, err
	}
	secret := &corev1.Secret{Data: response.GetData()}
	if op.GetOperationType() != driverpb.OperationType_OT_CREATE_MACHINE {
		c.secrets.Add(key, secret.DeepCopy())
	}
	return secret, nil
}
