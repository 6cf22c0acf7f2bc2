package expectations

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Conflict reports whether somebody else has written the object first, of which the cache will tell.
func Conflict(err error) bool { return apierrors.IsConflict(err) && ofObject(err) }

// Gone reports whether the object that was to be written is not there any more.
func Gone(err error) bool { return apierrors.IsNotFound(err) && ofObject(err) }

// UnlessGone is the error, and nil if the object is gone.
func UnlessGone(err error) error {
	if Gone(err) {
		return nil
	}
	return err
}

// Taken reports whether an object of the name that was to be made is there already.
func Taken(err error) bool { return apierrors.IsAlreadyExists(err) && ofObject(err) }

// ofObject reports whether an error is what the API server says of an object, which it names. A
// webhook, which may say no with any code, names none.
func ofObject(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return false
	}
	details := answer.Status().Details
	return details != nil && details.Name != ""
}
