package instance

import (
	"context"
	"fmt"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// spent returns a failure instead of a creation if the class is known to have no capacity and another one
// may have some. The driver has just reported that there is no instance.
func (e *Engine) spent(ctx context.Context, req Request) (failure Failed, spent bool) {
	if req.Capacity == nil {
		return Failed{}, false
	}
	spent, untouched := req.Capacity.Spent()
	if !spent {
		return Failed{}, false
	}
	failure = failed(MethodCreate, status.Error(codes.ResourceExhausted, fmt.Sprintf("class %s had no capacity left a moment ago, and was not asked again", req.Class.Name)))
	failure.Fallback = FallsBack
	if untouched {
		return failure, true
	}
	return e.vacated(ctx, req, failure), true
}

// vacated deletes what is left of a creation that failed for lack of capacity, since an instance of
// another class may then be created elsewhere. Until all of it is gone, it returns what is in the way.
func (e *Engine) vacated(ctx context.Context, req Request, failure Failed) Failed {
	if left, remains := e.deleteRest(ctx, req, "what is left of a creation with class "+req.Class.Name+" is being deleted"); remains {
		return left
	}
	return failure
}

// deleteRest deletes what a creation left. Until all of it is gone, it returns what is in the way: a failure
// of the driver, or one with a message if the deletion is in progress.
func (e *Engine) deleteRest(ctx context.Context, req Request, message string) (left Failed, remains bool) {
	switch r := e.delete(ctx, req).(type) {
	case Failed:
		return r, true
	case Remains:
		return failed(MethodDelete, status.Error(codes.Aborted, message)), true
	}
	return Failed{}, false
}
