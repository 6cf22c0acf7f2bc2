// Package output prints the results of commands as text, and in the formats of kubectl.
package output

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"

	machinev1alpha1 "github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
)

// Formats of --output. The empty format is text for people.
const (
	JSON = "json"
	YAML = "yaml"
	Name = "name"
	Wide = "wide"
	// text was the name of the default before it had none, and is still accepted.
	text = "text"
)

// Objects are the formats of a command that prints API objects or results with names, but no table.
var Objects = []string{JSON, YAML, Name}

// Tables are the formats of a command that prints a table.
var Tables = []string{JSON, YAML, Name, Wide}

// Values are the formats of a command whose result has no name, such as a report.
var Values = []string{JSON, YAML}

// Format is the flag --output of a command. The zero value prints text.
type Format struct {
	value   string
	accepts []string
}

// Add adds the flag, which accepts the given formats.
func (f *Format) Add(cmd *cobra.Command, accepts []string) {
	f.accepts = accepts
	cmd.Flags().VarP(f, "output", "o", "output format: "+alternatives(accepts)+"; by default, text")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(accepts, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
}

func alternatives(of []string) string {
	last := len(of) - 1
	return strings.Join(of[:last], ", ") + " or " + of[last]
}

// String implements pflag.Value.
func (f *Format) String() string { return f.value }

// Type implements pflag.Value.
func (f *Format) Type() string { return "string" }

// Set implements pflag.Value.
func (f *Format) Set(value string) error {
	switch {
	case value == text:
		f.value = ""
	case value != "" && !slices.Contains(f.accepts, value):
		return args.Wrongf("unknown format %q; expected %s", value, alternatives(f.accepts))
	default:
		f.value = value
	}
	return nil
}

// IsText reports whether the output is text, which may contain progress.
func (f *Format) IsText() bool { return f.value == "" || f.value == Wide }

// IsWide reports whether a table shows all columns.
func (f *Format) IsWide() bool { return f.value == Wide }

// Named is a result that is not an API object.
type Named interface {
	// Names returns the output of the format name, one line for each.
	Names() []string
}

// Print prints a result: an API object or list, or any value that can be marshaled. A result that is not an API object
// implements Named if the command accepts the format name. print prints the result as text.
func (f *Format) Print(out io.Writer, result any, print func(io.Writer) error) error {
	var printed []byte
	var err error
	switch f.value {
	case JSON:
		if printed, err = json.MarshalIndent(typed(result), "", "  "); err == nil {
			printed = append(printed, '\n')
		}
	case YAML:
		printed, err = yaml.Marshal(typed(result))
	case Name:
		printed, err = names(result)
	default:
		return print(out)
	}
	if err == nil {
		_, err = out.Write(printed)
	}
	if err != nil {
		return fmt.Errorf("cannot print the result: %w", err)
	}
	return nil
}

// Changed prints an object that was changed. As text, the output is its name and what was done with it, such as
// "machine.machine.sapcloud.io/m will be preserved now".
func (f *Format) Changed(out io.Writer, object client.Object, done string) error {
	return f.Print(out, object, func(out io.Writer) error {
		name, err := NameOf(object)
		if err == nil {
			_, err = fmt.Fprintf(out, "%s %s\n", name, done)
		}
		return err
	})
}

// scheme has the kinds that commands print.
var scheme = runtime.NewScheme()

func init() {
	utilruntime.Must(machinev1alpha1.AddToScheme(scheme))
	utilruntime.Must(vmv1alpha1.AddToScheme(scheme))
}

// typed returns a copy of an API object or list with apiVersion and kind, which the typed client leaves empty, and
// without managedFields, which kubectl also omits. It returns any other value as it is.
func typed(result any) any {
	object, is := result.(runtime.Object)
	if !is {
		return result
	}
	object = object.DeepCopyObject()
	complete := func(object runtime.Object) error {
		if kind, err := apiutil.GVKForObject(object, scheme); err == nil {
			object.GetObjectKind().SetGroupVersionKind(kind)
		}
		if accessor, err := meta.Accessor(object); err == nil {
			accessor.SetManagedFields(nil)
		}
		return nil
	}
	if meta.IsListType(object) {
		_ = meta.EachListItem(object, complete) // complete returns no error
	}
	_ = complete(object)
	return object
}

// names returns the names of the objects of a result, one per line.
func names(result any) ([]byte, error) {
	var all []string
	add := func(object runtime.Object) error {
		name, err := NameOf(object.(client.Object))
		all = append(all, name)
		return err
	}
	var err error
	switch result := result.(type) {
	case Named:
		all = result.Names()
	case client.ObjectList:
		err = meta.EachListItem(result, add)
	case client.Object:
		err = add(result)
	default:
		err = fmt.Errorf("%T has no name", result)
	}
	lines := ""
	for _, name := range all {
		lines += name + "\n"
	}
	return []byte(lines), err
}

// NameOf returns the name of an object as kubectl prints it, such as "machine.machine.sapcloud.io/pool-x7k2p".
func NameOf(object client.Object) (string, error) {
	kind, err := apiutil.GVKForObject(object, scheme)
	if err != nil {
		return "", err
	}
	return strings.ToLower(kind.Kind) + "." + kind.Group + "/" + object.GetName(), nil
}
