package manifest

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
)

// Class is a class from a file. The zero value means that there is no class.
type Class struct {
	// current is nil if the class has to be migrated first.
	current *v1alpha1.MachineClass
	// old is a pointer to an object of package legacy, of the kind oldKind. It is nil if current is set.
	old     any
	oldKind string
}

// Provider returns the driver that the class names, or "".
func (c Class) Provider() string {
	if c.current == nil {
		return ""
	}
	return c.current.Provider
}

// Name returns the name of the class, or "" if there is none.
func (c Class) Name() string {
	if c.current != nil {
		return c.current.Name
	}
	if object, ok := c.old.(metav1.Object); ok {
		return object.GetName()
	}
	return ""
}

// IsFor returns an error if the class names another driver.
func (c Class) IsFor(driver string) error {
	if provider := c.Provider(); provider != "" && !strings.EqualFold(provider, driver) {
		return fmt.Errorf("the provider of class %s is %q, not %q", c.current.Name, provider, driver)
	}
	return nil
}

// MachineClass returns the class, or nil if there is none. The driver migrates classes of a legacy kind, as in
// the manager.
func (c Class) MachineClass(ctx context.Context, d driver.Driver) (*v1alpha1.MachineClass, error) {
	if c.old == nil {
		return c.current, nil
	}
	migrator, ok := driver.As[driver.ClassMigrator](d)
	if !ok {
		return nil, fmt.Errorf("the driver cannot convert the %s to a MachineClass", c.oldKind)
	}
	object := c.old.(metav1.Object)
	class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: object.GetNamespace(), Name: object.GetName()}}
	_, err := migrator.GenerateMachineClassForMigration(ctx, &driver.GenerateMachineClassForMigrationRequest{
		ProviderSpecificMachineClass: c.old, MachineClass: class,
		ClassSpec: &v1alpha1.ClassSpec{APIGroup: v1alpha1.GroupName, Kind: c.oldKind, Name: object.GetName()},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot convert the %s to a MachineClass: %w", c.oldKind, err)
	}
	return class, nil
}
