package subresources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/millwright-dev/millwright/api/vm/subresources"
	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// call is an authorized request for a VM.
type call struct {
	w  http.ResponseWriter
	r  *http.Request
	vm *v1alpha1.VirtualMachine
	// dryRun is true if a request that would change something is only validated.
	dryRun bool
}

// operation is the implementation of a verb for a subresource.
type operation struct {
	subresource, verb, method string
	// do returns an error only if nothing was written to the response yet.
	do func(*Server, call) error
}

// operations lists all operations.
func operations() []operation {
	return []operation{
		{"console", "get", http.MethodGet, (*Server).console},
		{"log", "get", http.MethodGet, (*Server).log},
		{"portforward", "get", http.MethodGet, (*Server).portForward},
		{"vnc", "get", http.MethodGet, (*Server).vnc},
		{"screenshot", "get", http.MethodGet, (*Server).screenshot},
		{"reset", "create", http.MethodPost, (*Server).reset},
		{"pause", "create", http.MethodPost, (*Server).pause},
		{"pause", "delete", http.MethodDelete, (*Server).unpause},
		{"migrate", "create", http.MethodPost, (*Server).migrate},
		{"migrate", "delete", http.MethodDelete, (*Server).cancel},
	}
}

// serve executes an authorized request.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, who user.Info, info *request.RequestInfo) error {
	known := false
	for _, operation := range operations() {
		if !info.IsResourceRequest || info.APIGroup != api.Group || info.APIVersion != api.Version || info.Resource != api.Resource ||
			info.Subresource != operation.subresource || len(info.Parts) != 3 || info.Namespace == "" {
			continue
		}
		known = true
		// A path can contain a verb that differs from that of the HTTP method.
		if r.Method != operation.method || info.Verb != operation.verb {
			continue
		}
		dry, err := dryRun(r)
		if err != nil {
			return err
		}
		vm := &v1alpha1.VirtualMachine{}
		err = s.Reader.Get(r.Context(), client.ObjectKey{Namespace: info.Namespace, Name: info.Name}, vm)
		if err != nil {
			return err
		}
		s.Log.Info("Serving subresource", "vm", info.Namespace+"/"+info.Name, "subresource", operation.subresource, "verb", operation.verb, "user", who.GetName())
		return operation.do(s, call{w: w, r: r, vm: vm, dryRun: dry})
	}
	if known {
		return apierrors.NewMethodNotSupported(groupResource(info.Subresource), info.Verb)
	}
	return apierrors.NewGenericServerResponse(http.StatusNotFound, info.Verb, groupResource(info.Subresource), info.Name, "subresource not found", 0, false)
}

// dryRun reads the parameter dryRun, as kube-apiserver does for other resources.
func dryRun(r *http.Request) (bool, error) {
	values := r.URL.Query()["dryRun"]
	for _, value := range values {
		if value != metav1.DryRunAll {
			return false, badRequest("dryRun: unknown value %q; expected %s", value, metav1.DryRunAll)
		}
	}
	return len(values) > 0, nil
}

// oob connects to the OOBManagement service of the VM's hypervisor.
func (s *Server) oob(c call) (vmpb.OOBManagementClient, *grpc.ClientConn, error) {
	if c.vm.Status.ActivePodUID == "" {
		return nil, nil, c.conflict("virtual machine %s is not running", c.vm.Name)
	}
	conn, err := s.Hypervisors.Dial(c.vm)
	if err != nil {
		return nil, nil, unavailable("%v", err)
	}
	return vmpb.NewOOBManagementClient(conn), conn, nil
}

// resetTimeout is the time limit of a reset.
const resetTimeout = 20 * time.Second

// reset resets the VM. gRPC may send the request twice; the counter makes it idempotent.
func (s *Server) reset(c call) error {
	vm, conn, err := s.oob(c)
	if err != nil {
		return err
	}
	defer conn.Close()
	if c.dryRun {
		writeSuccess(c.w, "virtual machine "+c.vm.Name+" reset (server dry run)")
		return nil
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), resetTimeout)
	defer cancel()
	if _, err := vm.Reset(ctx, &vmpb.ResetRequest{IdempotencyCounter: 1 + rand.Uint64N(1<<63)}); err != nil {
		return c.failure(err)
	}
	writeSuccess(c.w, "virtual machine "+c.vm.Name+" reset")
	return nil
}

// bodyLimit limits the size of a request body, in bytes.
const bodyLimit = 4 << 10

// migrate requests a live migration.
func (s *Server) migrate(c call) error {
	options := api.MigrateOptions{}
	decoder := json.NewDecoder(http.MaxBytesReader(c.w, c.r.Body, bodyLimit))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&options); err != nil && !errors.Is(err, io.EOF) {
		return badRequest("the body must be {\"nodeName\": \"NAME\"}: %v", err)
	}
	if err := c.mayMigrate(options.NodeName); err != nil {
		return err
	}
	order, has := c.vm.Status.ActivePodName, c.vm.Annotations[v1alpha1.AnnotationMigrate]
	if options.NodeName != "" {
		order += "/" + options.NodeName
	}
	// A request without a node keeps the node of an earlier request.
	if has != order && (options.NodeName != "" || !strings.HasPrefix(has, order+"/")) {
		if err := s.annotate(c, order); err != nil {
			return err
		}
	}
	writeSuccess(c.w, "migration of virtual machine "+c.vm.Name+" requested")
	return nil
}

func (c call) mayMigrate(to string) error {
	can := meta.FindStatusCondition(c.vm.Status.Conditions, v1alpha1.ConditionLiveMigratable)
	switch {
	case c.vm.Status.ActivePodName == "" || c.vm.Status.ActivePodUID == "":
		return c.conflict("virtual machine %s is not running", c.vm.Name)
	case to != "" && to == c.vm.Status.NodeName:
		return c.conflict("virtual machine %s is already on host %s", c.vm.Name, to)
	case to != "" && !isName(to):
		return badRequest("%q is not a valid node name", to)
	case can == nil:
		return c.conflict("virtual machine %s cannot be migrated live: its hypervisor has not reported yet whether it supports live migration", c.vm.Name)
	case can.Status != metav1.ConditionTrue:
		return c.conflict("virtual machine %s cannot be migrated live: %s", c.vm.Name, can.Message)
	}
	return nil
}

// cancel withdraws the request for a live migration.
func (s *Server) cancel(c call) error {
	if pod, _, _ := strings.Cut(c.vm.Annotations[v1alpha1.AnnotationMigrate], "/"); pod == "" || pod != c.vm.Status.ActivePodName {
		return c.conflict("no migration of virtual machine %s was requested", c.vm.Name)
	}
	if err := s.annotate(c, ""); err != nil {
		return err
	}
	writeSuccess(c.w, "migration of virtual machine "+c.vm.Name+" cancelled")
	return nil
}

// annotate writes the migration request to the VM, like patch.
func (s *Server) annotate(c call, order string) error {
	before := c.vm.DeepCopy()
	if order == "" {
		delete(c.vm.Annotations, v1alpha1.AnnotationMigrate)
	} else {
		metav1.SetMetaDataAnnotation(&c.vm.ObjectMeta, v1alpha1.AnnotationMigrate, order)
	}
	return s.patch(c, before)
}

// conflict returns an error for a VM whose state does not allow the operation.
func (c call) conflict(format string, args ...any) error {
	err := apierrors.NewConflict(groupResource(""), c.vm.Name, fmt.Errorf(format, args...))
	err.ErrStatus.Message = fmt.Sprintf(format, args...)
	return err
}

// textLimit limits the length of error messages from hypervisors, in bytes.
const textLimit = 500

// failure converts an error of the hypervisor into an API status. Its message is sanitized, because kubectl prints it
// as it is.
func (c call) failure(err error) error {
	switch message := messages.Line(messages.Shorten(status.Convert(err).Message(), textLimit)); status.Code(err) {
	case codes.FailedPrecondition:
		return c.conflict("%s", message)
	case codes.Unimplemented:
		return c.conflict("the hypervisor of virtual machine %s is too old for this; migrate the virtual machine, so that it gets a current one", c.vm.Name)
	case codes.ResourceExhausted:
		return apierrors.NewTooManyRequests(message, retrySeconds)
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return unavailable("the hypervisor of %s is not responding: %s", c.vm.Name, message)
	default:
		return apierrors.NewInternalError(errors.New(message))
	}
}

func badRequest(format string, args ...any) error {
	return apierrors.NewBadRequest(fmt.Sprintf(format, args...))
}

func unavailable(format string, args ...any) error {
	return apierrors.NewServiceUnavailable(fmt.Sprintf(format, args...))
}
