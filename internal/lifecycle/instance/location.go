package instance

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// place is where the driver looks for an instance, and where it has to: where its creation began, or
// where it was found since.
type place struct {
	// at is empty if the driver does not tell. recorded is empty if nothing was recorded.
	at, recorded string
}

// elsewhere reports whether the driver looks where the instance need not be, so that nothing follows
// if it finds none.
func (p place) elsewhere() bool { return p.at != "" && p.recorded != "" && p.at != p.recorded }

// news is the location to record once the driver has found the instance; empty if it is recorded.
func (p place) news() string {
	if p.at == p.recorded {
		return ""
	}
	return p.at
}

// errElsewhere is the cause of a failure after which the driver has to be led back.
var errElsewhere = errors.New("the driver looks elsewhere")

// Elsewhere reports whether the driver found no instance, and looked elsewhere than where its creation
// began. The class, its Secret or the infrastructure behind them has changed.
func (f *Failure) Elsewhere() bool { return f != nil && errors.Is(f.Err, errElsewhere) }

// failure is the result if the driver looks elsewhere and finds nothing.
func (p place) failure() Failed {
	return failed(MethodStatus, status.WrapError(codes.FailedPrecondition, fmt.Sprintf(
		"the VM may be in %s, and with the present class and Secret it is looked for in %s, where it is not: restore what was changed, or if there is no VM any more, remove the annotation %s",
		p.recorded, p.at, driver.AnnotationLocation), errElsewhere))
}

// locate asks the driver where it looks for the instance of a machine.
func (e *Engine) locate(ctx context.Context, req Request) (place, error) {
	p := place{recorded: driver.Location(req.Machine)}
	locator, ok := driver.As[driver.Locator](e.driver)
	if !ok {
		return p, nil
	}
	resp, err := locator.LocateMachine(ctx, &driver.LocateMachineRequest{Machine: req.Machine, MachineClass: req.Class, Secret: req.Secret})
	switch {
	case codeOf(err) == codes.Unimplemented:
		return p, nil
	case err != nil:
		return p, err
	case resp == nil || resp.Location == "":
		return p, unnamed(nil)
	case len(resp.Location) > longestID || !IsPrintable(resp.Location):
		return p, status.Error(codes.Internal, "the driver named a location that cannot be stored")
	}
	p.at = resp.Location
	return p, nil
}

// begin creates an instance that does not exist, after the place where that happens is recorded. If
// an earlier creation began in another place, what it left there is deleted first.
func (e *Engine) begin(ctx context.Context, req Request, p place) EnsureResult {
	switch {
	case p.at == "":
		return e.create(ctx, req)
	case p.recorded == "":
		return Located{Location: p.at}
	}
	unbegun := req
	unbegun.Machine = req.Machine.DeepCopy()
	delete(unbegun.Machine.Annotations, driver.AnnotationLocation)
	wanted, err := e.locate(ctx, unbegun)
	switch {
	case err != nil:
		return failed(MethodStatus, err)
	case wanted.at == p.recorded:
		e.locations.Add(inputsOf(req.Class, req.Secret), wanted.at)
		return e.create(ctx, req)
	}
	if left, remains := e.deleteRest(ctx, req, "what an earlier creation left in "+p.recorded+" is being deleted"); remains {
		return left
	}
	return Located{Location: wanted.at}
}

// LocationOf returns where instances of a class were created last; empty if this process does not
// know. It is for writes that happen anyway before the creation of an instance: the location need not
// be written separately then.
func (e *Engine) LocationOf(class *v1alpha1.MachineClass, secret *corev1.Secret) string {
	known, _ := e.locations.Get(inputsOf(class, secret))
	location, _ := known.(string)
	return location
}

// maxLocations limits how many locations are remembered.
const maxLocations = 256

// inputsOf is a digest of what a driver may derive a location from.
func inputsOf(class *v1alpha1.MachineClass, secret *corev1.Secret) [sha256.Size]byte {
	var data map[string][]byte
	if secret != nil {
		data = secret.Data
	}
	text, _ := json.Marshal([]any{class.Namespace, class.Name, class.Provider, driver.APIGroup(class), class.ProviderSpec.Raw, data}) // never fails
	return sha256.Sum256(text)
}
