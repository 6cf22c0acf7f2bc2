package instance

import (
	"context"
	"fmt"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// spent answers instead of a creation if the class is known to have no capacity, and another one may
// have some. The driver has just said that there is no instance.
func (e *Engine) spent(ctx context.Context, req Request) (Answer, bool) {
	if req.Capacity == nil {
		return Answer{}, false
	}
	spent, untouched := req.Capacity.Spent()
	if !spent {
		return Answer{}, false
	}
	answer := failed(MethodCreate, status.Error(codes.ResourceExhausted, fmt.Sprintf("class %s had no capacity left a moment ago, and was not asked again", req.Class.Name)))
	answer.Fallback = FallsBack
	if untouched {
		return answer, true
	}
	return e.vacated(ctx, req, answer), true
}

// vacated deletes what a creation left that failed for want of capacity, as an instance of another class
// may be made elsewhere now. Until all of it is gone, the answer is what is in the way.
func (e *Engine) vacated(ctx context.Context, req Request, answer Answer) Answer {
	switch left := e.delete(ctx, req); left.State {
	case Gone:
		return answer
	case Remains:
		return failed(MethodDelete, status.Error(codes.Aborted, "what is left of a creation with class "+req.Class.Name+" is being deleted"))
	default:
		return left
	}
}
