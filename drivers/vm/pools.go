package vm

import (
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// poolsField is the JSON name of providerSpec.AddressesFromPools.
const poolsField = "addressesFromPools"

// maxPools is the limit of a VirtualMachine: one pool for each IP version.
const maxPools = 2

// poolKind matches the kind of a pool, as the CRD of VirtualMachines does.
var poolKind = regexp.MustCompile(`^[a-zA-Z]([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$`)

func (s *providerSpec) validatePools() field.ErrorList {
	var errs field.ErrorList
	path := specPath.Child(poolsField)
	if len(s.AddressesFromPools) > maxPools {
		errs = append(errs, field.TooMany(path, len(s.AddressesFromPools), maxPools))
	}
	if len(s.AddressesFromPools) > 0 && len(s.Addresses) > 0 {
		errs = append(errs, field.Forbidden(path, "cannot be combined with addresses"))
	}
	for i, pool := range s.AddressesFromPools {
		at := path.Index(i)
		for _, wrong := range validation.IsDNS1123Subdomain(pool.APIGroup) {
			errs = append(errs, field.Invalid(at.Child("apiGroup"), pool.APIGroup, wrong))
		}
		if !poolKind.MatchString(pool.Kind) {
			errs = append(errs, field.Invalid(at.Child("kind"), pool.Kind, "must be the kind of a pool, such as InClusterIPPool"))
		}
		for _, wrong := range validation.IsDNS1123Subdomain(pool.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), pool.Name, wrong))
		}
		if slices.Contains(s.AddressesFromPools[:i], pool) {
			errs = append(errs, field.Duplicate(at, strings.Join([]string{pool.APIGroup, pool.Kind, pool.Name}, "/")))
		}
	}
	return errs
}
