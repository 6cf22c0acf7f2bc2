// Package apierror classifies the errors of an API server.
//
// A webhook may deny a request with any status code, so the code alone does not say anything about the
// object. An error of the API server itself about an object names that object.
package apierror

import (
	"errors"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Conflict reports whether another client wrote the object first. An event follows that write.
func Conflict(err error) bool { return apierrors.IsConflict(err) && aboutObject(err) }

// Gone reports whether the object to be written does not exist any more.
func Gone(err error) bool { return apierrors.IsNotFound(err) && aboutObject(err) }

// IgnoreGone returns nil if the object is gone, and the error otherwise.
func IgnoreGone(err error) error {
	if Gone(err) {
		return nil
	}
	return err
}

// Taken reports whether an object with the name of the one to be created already exists.
func Taken(err error) bool { return apierrors.IsAlreadyExists(err) && aboutObject(err) }

// Denied reports whether an admission webhook or policy denied the request. Kubernetes defines the texts.
func Denied(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	message := status.Status().Message
	return strings.HasPrefix(message, "admission webhook ") || strings.Contains(message, "ValidatingAdmissionPolicy '")
}

// aboutObject reports whether an error is the API server's own and about an object.
func aboutObject(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Name != "" && !Denied(err)
}
