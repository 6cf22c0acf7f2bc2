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

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// unknownPath is the cause of a NotFound of a path, not of an object.
const unknownPath = metav1.CauseTypeUnexpectedServerResponse

// errorTable maps errors of the infrastructure cluster to codes. The first row that matches
// counts; an error that matches none is Unknown.
var errorTable = []struct {
	matches func(error) bool
	code    codes.Code
	// hint, if any, is put before the error's text.
	hint string
}{
	{is(context.Canceled), codes.Canceled, ""},
	{is(context.DeadlineExceeded), codes.DeadlineExceeded, ""},
	{apierrors.IsConflict, codes.Aborted, ""},
	{apierrors.IsAlreadyExists, codes.Aborted, ""},
	{apierrors.IsInvalid, codes.InvalidArgument, ""},
	{apierrors.IsBadRequest, codes.InvalidArgument, ""},
	{apierrors.IsRequestEntityTooLargeError, codes.InvalidArgument, ""},
	{apierrors.IsUnauthorized, codes.Unauthenticated, "the credentials of the infrastructure cluster are not valid"},
	{hasCause(corev1.NamespaceTerminatingCause), codes.FailedPrecondition, specPath + ".vmPool is being deleted"},
	{quotaExceeded, codes.ResourceExhausted, ""},
	{apierrors.IsForbidden, codes.PermissionDenied, ""},
	{noNamespace, codes.FailedPrecondition, specPath + ".vmPool does not exist in the infrastructure cluster"},
	{absent, codes.Aborted, ""},
	{apierrors.IsNotFound, codes.FailedPrecondition, "the infrastructure cluster does not know VirtualMachines"},
	{meta.IsNoMatchError, codes.FailedPrecondition, "the infrastructure cluster does not know VirtualMachines"},
	{apierrors.IsTimeout, codes.DeadlineExceeded, ""},
	{apierrors.IsServerTimeout, codes.DeadlineExceeded, ""},
	{apierrors.IsTooManyRequests, codes.Unavailable, ""},
	{apierrors.IsServiceUnavailable, codes.Unavailable, ""},
	{apierrors.IsInternalError, codes.Internal, ""},
	{unreachable, codes.Unavailable, "the infrastructure cluster does not answer"},
}

// coded gives an error its code. An error with a code is returned as it is.
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

// contextCode returns the code for the end of a context.
func contextCode(err error) codes.Code {
	if errors.Is(err, context.Canceled) {
		return codes.Canceled
	}
	return codes.DeadlineExceeded
}

// textOf returns the text of an error without the URL of the request, which is part of the
// kubeconfig.
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

// quotaExceeded reports whether a ResourceQuota refused a request. Only the text of the
// error distinguishes that from other refusals.
func quotaExceeded(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota")
}

func noNamespace(err error) bool {
	var failure apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &failure) {
		return false
	}
	details := failure.Status().Details
	return details != nil && details.Kind == "namespaces"
}

func unreachable(err error) bool {
	if _, ok := errors.AsType[*url.Error](err); ok {
		return true
	}
	_, ok := errors.AsType[net.Error](err)
	return ok || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
