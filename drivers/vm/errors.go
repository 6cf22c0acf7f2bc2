package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// unknownPath is the cause of a NotFound error for a path instead of an object.
const unknownPath = metav1.CauseTypeUnexpectedServerResponse

// absent reports whether an object does not exist. A cluster without the kind also returns NotFound.
func absent(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, unknownPath)
}

// errorTable maps errors of the infrastructure cluster to codes. The first match is used. An error without a match
// is Unknown.
var errorTable = []struct {
	matches func(error) bool
	code    codes.Code
	// hint precedes the error's message. Optional.
	hint string
}{
	{is(errBudget), codes.Unavailable, ""},
	{is(context.Canceled), codes.Canceled, ""},
	{is(context.DeadlineExceeded), codes.DeadlineExceeded, ""},
	{apierrors.IsConflict, codes.Aborted, ""},
	{apierrors.IsAlreadyExists, codes.Aborted, ""},
	{apierrors.IsInvalid, codes.InvalidArgument, ""},
	{apierrors.IsBadRequest, codes.InvalidArgument, ""},
	{apierrors.IsRequestEntityTooLargeError, codes.InvalidArgument, ""},
	{apierrors.IsUnauthorized, codes.Unauthenticated, "the credentials for the infrastructure cluster are invalid"},
	{hasCause(corev1.NamespaceTerminatingCause), codes.FailedPrecondition, "providerSpec.vmPool is being deleted"},
	{quotaExceeded, codes.ResourceExhausted, ""},
	{apierrors.IsForbidden, codes.PermissionDenied, ""},
	{noNamespace, codes.FailedPrecondition, "providerSpec.vmPool does not exist in the infrastructure cluster"},
	{absent, codes.Aborted, ""},
	{apierrors.IsNotFound, codes.FailedPrecondition, "the infrastructure cluster does not serve VirtualMachines"},
	{meta.IsNoMatchError, codes.FailedPrecondition, "the infrastructure cluster does not serve VirtualMachines"},
	{apierrors.IsTimeout, codes.DeadlineExceeded, ""},
	{apierrors.IsServerTimeout, codes.DeadlineExceeded, ""},
	{apierrors.IsTooManyRequests, codes.Unavailable, ""},
	{apierrors.IsServiceUnavailable, codes.Unavailable, ""},
	{apierrors.IsInternalError, codes.Internal, ""},
	{unreachable, codes.Unavailable, "the infrastructure cluster does not respond"},
}

// coded adds a code to an error that has none. doing is the start of the message.
func coded(doing string, err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	for _, row := range errorTable {
		if !row.matches(err) {
			continue
		}
		if row.hint != "" {
			doing += ": " + row.hint
		}
		return status.WrapError(row.code, fmt.Sprintf("%s: %s", doing, textOf(err)), err)
	}
	return status.WrapError(codes.Unknown, fmt.Sprintf("%s: %s", doing, textOf(err)), err)
}

// textOf returns the message of an error without the URL of the request, which is part of the kubeconfig.
func textOf(err error) string {
	if request, ok := errors.AsType[*url.Error](err); ok {
		return request.Err.Error()
	}
	return err.Error()
}

func is(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

func hasCause(cause metav1.CauseType) func(error) bool {
	return func(err error) bool { return apierrors.HasStatusCause(err, cause) }
}

// quotaExceeded reports whether a ResourceQuota rejected a request. The API server returns only a message for this,
// not a reason or cause.
func quotaExceeded(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota")
}

func noNamespace(err error) bool {
	failure, ok := errors.AsType[*apierrors.StatusError](err)
	return ok && apierrors.IsNotFound(err) && ptr.Deref(failure.ErrStatus.Details, metav1.StatusDetails{}).Kind == "namespaces"
}

func unreachable(err error) bool {
	if _, ok := errors.AsType[*url.Error](err); ok {
		return true
	}
	_, ok := errors.AsType[net.Error](err)
	return ok || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
