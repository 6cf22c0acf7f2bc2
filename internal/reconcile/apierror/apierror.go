// Package apierror classifies the errors of an API server.
//
// A webhook may deny a request with any status code, so the code alone does not describe the object. An error
// of the API server itself about an object contains the object's name.
package apierror

import (
	"errors"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Conflict reports whether another client wrote the object first. An event follows that write.
func Conflict(err error) bool { return apierrors.IsConflict(err) && aboutObject(err) }

// Gone reports whether the object to write no longer exists.
func Gone(err error) bool { return apierrors.IsNotFound(err) && aboutObject(err) }

// IgnoreGone returns nil if the object is gone, and the error otherwise.
func IgnoreGone(err error) error {
	if Gone(err) {
		return nil
	}
	return err
}

// Taken reports whether an object with the name of the object to create already exists.
func Taken(err error) bool { return apierrors.IsAlreadyExists(err) && aboutObject(err) }

// Denied reports whether an admission webhook or policy denied the request. It checks messages that Kubernetes
// defines.
func Denied(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	message := status.Status().Message
	return strings.HasPrefix(message, "admission webhook ") || strings.Contains(message, "ValidatingAdmissionPolicy '")
}

// aboutObject reports whether an error comes from the API server itself and is about an object.
func aboutObject(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Name != "" && !Denied(err)
}
