package output

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	machinev1alpha1 "github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

type results []string

// Names implements Named.
func (r results) Names() []string { return r }

func TestFormat_PrintsObjects(t *testing.T) {
	machine := &machinev1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "m", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "x"}}}}
	list := &machinev1alpha1.MachineList{Items: []machinev1alpha1.Machine{*machine, *machine}}
	for name, c := range map[string]struct {
		format string
		result any
		want   []string
		not    string
	}{
		"text":            {"", machine, []string{"as text"}, "{"},
		"former name":     {"text", machine, []string{"as text"}, "{"},
		"wide":            {Wide, machine, []string{"as text"}, "{"},
		"object as JSON":  {JSON, machine, []string{`"kind": "Machine"`, `"apiVersion": "machine.sapcloud.io/v1alpha1"`, `"name": "m"`}, "managedFields"},
		"object as YAML":  {YAML, machine, []string{"kind: Machine\n", "  name: m\n"}, "managedFields"},
		"object's name":   {Name, machine, []string{"machine.machine.sapcloud.io/m\n"}, "{"},
		"list as YAML":    {YAML, list, []string{"kind: MachineList\n", "  kind: Machine\n", "- apiVersion: machine.sapcloud.io/v1alpha1\n"}, "managedFields"},
		"names of a list": {Name, list, []string{"machine.machine.sapcloud.io/m\nmachine.machine.sapcloud.io/m\n"}, "{"},
		"other as JSON":   {JSON, results{"a"}, []string{"[\n  \"a\"\n]\n"}, "kind"},
		"other as YAML":   {YAML, results{"a"}, []string{"- a\n"}, "kind"},
		"names of others": {Name, results{"a", "b"}, []string{"a\nb\n"}, "["},
	} {
		t.Run(name, func(t *testing.T) {
			format := flag(t, Tables)
			if err := format.Set(c.format); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			if err := format.Print(&out, c.result, func(out io.Writer) error { _, err := fmt.Fprintln(out, "as text"); return err }); err != nil {
				t.Fatal(err)
			}
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("lacks %q:\n%s", want, &out)
				}
			}
			if strings.Contains(out.String(), c.not) {
				t.Errorf("contains %q:\n%s", c.not, &out)
			}
		})
	}
	if machine.Kind != "" || machine.ManagedFields == nil {
		t.Error("printing changed the object")
	}
}

func flag(t *testing.T, accepts []string) *Format {
	t.Helper()
	format := &Format{}
	format.Add(&cobra.Command{Use: "test"}, accepts)
	return format
}

func TestFormat_RejectsUnknownValues(t *testing.T) {
	format := flag(t, Values)
	for _, value := range []string{"xml", Name, Wide} {
		if err := format.Set(value); err == nil || !strings.Contains(err.Error(), "expected json or yaml") {
			t.Errorf("%s: %v", value, err)
		}
	}
}

func TestTable_ShowsWideColumnsOnRequest(t *testing.T) {
	table := Table{Columns: []Column{{Title: "NAME"}, {Title: "PHASE"}, {Title: "POD", Wide: true}}, Rows: [][]string{{"größer", "Running", "p-1\nx"}, {"b", "", ""}}}
	for value, want := range map[string]string{
		"":   "NAME     PHASE\ngrößer   Running\nb        \n",
		Wide: "NAME     PHASE     POD\ngrößer   Running   p-1 x\nb                  \n",
	} {
		format := flag(t, Tables)
		if err := format.Set(value); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := table.Print(&out, *format, "none"); err != nil || out.String() != want {
			t.Errorf("%q: got %q (%v), want %q", value, &out, err, want)
		}
	}
	var out strings.Builder
	if err := (Table{Columns: table.Columns}).Print(&out, Format{}, "No objects found."); err != nil || out.String() != "No objects found.\n" {
		t.Errorf("an empty table: %q, %v", &out, err)
	}
}

func TestTable_ColorsPhases(t *testing.T) {
	const table = "NAME     PHASE     STATE\ngrößer   Running   Failed\nb        Failed    x\nRunning  -         x\nc        Odd       x\n"
	const want = "NAME     PHASE     STATE\ngrößer   \x1b[32mRunning\x1b[0m   Failed\nb        \x1b[31mFailed\x1b[0m    x\nRunning  -         x\nc        Odd       x\n"
	if got := colored(table); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := colored("NAME\nRunning\n"); got != "NAME\nRunning\n" {
		t.Errorf("a table without phases: %q", got)
	}
	if Colored(io.Discard) {
		t.Error("an output that is not a terminal gets colors")
	}
}
