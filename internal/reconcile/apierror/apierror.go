// Package apierror reads the errors of an API server.
//
// A webhook may refuse a request with any status code, so the code alone says nothing of the
// object. What the API server itself says of an object names that object.
package apierror

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Conflict reports whether another client wrote the object first. An event follows that write.
func Conflict(err error) bool { return apierrors.IsConflict(err) && namesObject(err) }

// Gone reports whether the object to be written does not exist any more.
func Gone(err error) bool { return apierrors.IsNotFound(err) && namesObject(err) }

// IgnoreGone returns nil if the object is gone, and the error otherwise.
func IgnoreGone(err error) error {
	if Gone(err) {
		return nil
	}
	return err
}

// Taken reports whether an object with the name of the one to be created already exists.
func Taken(err error) bool { return apierrors.IsAlreadyExists(err) && namesObject(err) }

// namesObject reports whether an error is the API server's own and about an object.
func namesObject(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return false
	}
	details := answer.Status().Details
	return details != nil && details.Name != ""
}
