package instance

import (
	"context"
	"fmt"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// spent returns a failure without calling the driver if the class is known to have no capacity while another
// class may have some. The driver has just reported that the instance does not exist.
func (e *Engine) spent(ctx context.Context, req Request) (failure Failed, spent bool) {
	if req.Capacity == nil {
		return Failed{}, false
	}
	spent, untouched := req.Capacity.Spent()
	if !spent {
		return Failed{}, false
	}
	failure = failed(MethodCreate, status.Error(codes.ResourceExhausted, fmt.Sprintf("class %s had no capacity a moment ago and was not tried again", req.Class.Name)))
	failure.Fallback = FallsBack
	if untouched {
		return failure, true
	}
	return e.afterCleanup(ctx, req, failure), true
}

// afterCleanup deletes the resources of a creation that failed for lack of capacity, because an instance of
// another class may then be created elsewhere. It returns the given failure when they are gone. Until then, it
// returns what is in the way.
func (e *Engine) afterCleanup(ctx context.Context, req Request, failure Failed) Failed {
	if left, remains := e.cleanUp(ctx, req, "resources of a failed creation with class "+req.Class.Name+" are being deleted"); remains {
		return left
	}
	return failure
}

// cleanUp deletes the resources of an earlier creation. Until they are gone, it returns what is in the way: a
// failure of the driver, or a failure with the given message if the deletion is in progress.
func (e *Engine) cleanUp(ctx context.Context, req Request, message string) (left Failed, remains bool) {
	switch r := e.delete(ctx, req).(type) {
	case Failed:
		return r, true
	case Remains:
		return failed(MethodDelete, status.Error(codes.Aborted, message)), true
	}
	return Failed{}, false
}
