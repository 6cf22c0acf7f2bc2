package expectations

import "github.com/millwright-dev/millwright/internal/reconcile/apierror"

// Ledger is the former name of Writes.
type Ledger = Writes

// Conflict is apierror.Conflict.
func Conflict(err error) bool { return apierror.Conflict(err) }

// Gone is apierror.Gone.
func Gone(err error) bool { return apierror.Gone(err) }

// UnlessGone is apierror.IgnoreGone.
func UnlessGone(err error) error { return apierror.IgnoreGone(err) }

// Taken is apierror.Taken.
func Taken(err error) bool { return apierror.Taken(err) }
