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

// place is where the driver looks for an instance, and where it must look: the place where the instance's
// creation began or where it was found later.
type place struct {
	// at is empty if the driver does not report it. recorded is empty if no place was recorded.
	at, recorded string
}

// elsewhere reports whether the driver looks in another place than the recorded one. If so, an instance that it
// does not find may still exist.
func (p place) elsewhere() bool { return p.at != "" && p.recorded != "" && p.at != p.recorded }

// unrecorded returns the location to record once the driver has found the instance. It is empty if it is
// already recorded.
func (p place) unrecorded() string {
	if p.at == p.recorded {
		return ""
	}
	return p.at
}

// errElsewhere is the cause of a failure that requires the driver's configuration to be restored.
var errElsewhere = errors.New("the driver looks in another location")

// Elsewhere reports whether the driver found no instance but looked in another place than where its creation
// began. In this case, the class, its Secret or the infrastructure has changed.
func (f *Failure) Elsewhere() bool { return f != nil && errors.Is(f.Err, errElsewhere) }

// failure returns the result if the driver looks elsewhere and does not find the instance.
func (p place) failure() Failed {
	return failed(MethodStatus, status.WrapError(codes.FailedPrecondition, fmt.Sprintf(
		"the VM may be in %s, but with the current class and Secret the driver looks in %s and does not find it; restore the class and Secret, or if the VM no longer exists, remove the annotation %s",
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
		return p, noResponse(nil)
	case len(resp.Location) > longestID || !IsPrintable(resp.Location):
		return p, status.Error(codes.Internal, "the driver returned a location that cannot be stored")
	}
	p.at = resp.Location
	return p, nil
}

// begin creates an instance that does not exist, after the place of its creation is recorded. If an earlier
// creation began in another place, its resources there are deleted first.
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
	target, err := e.locate(ctx, unbegun)
	switch {
	case err != nil:
		return failed(MethodStatus, err)
	case target.at == p.recorded:
		e.locations.Add(inputsOf(req.Class, req.Secret), target.at)
		return e.create(ctx, req)
	}
	if left, remains := e.cleanUp(ctx, req, "resources of an earlier creation in "+p.recorded+" are being deleted"); remains {
		return left
	}
	return Located{Location: target.at}
}

// LocationOf returns where instances of a class were last created, or an empty string if this process does not
// know. Callers that write the machine before the creation anyway can include the location and save a separate
// write.
func (e *Engine) LocationOf(class *v1alpha1.MachineClass, secret *corev1.Secret) string {
	known, _ := e.locations.Get(inputsOf(class, secret))
	location, _ := known.(string)
	return location
}

// maxLocations limits how many locations are remembered.
const maxLocations = 256

// inputsOf returns a digest of everything from which a driver may derive a location.
func inputsOf(class *v1alpha1.MachineClass, secret *corev1.Secret) [sha256.Size]byte {
	var data map[string][]byte
	if secret != nil {
		data = secret.Data
	}
	text, _ := json.Marshal([]any{class.Namespace, class.Name, class.Provider, driver.APIGroup(class), class.ProviderSpec.Raw, data}) // never fails
	return sha256.Sum256(text)
}
