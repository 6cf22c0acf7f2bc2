package rollout

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

// annotationCause is where users and kubectl note why they changed something.
const annotationCause = "kubernetes.io/change-cause"

// PrintHistory prints the revisions of a deployment, one a line, from old to new.
func PrintHistory(out io.Writer, f Facts, now time.Time) error {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "REVISION\tSET\tCLASS\tAGE\tMACHINES\tCHANGE-CAUSE")
	current := f.Current()
	for _, set := range revision.Sorted(f.Sets) {
		mark := ""
		if set == current {
			mark = " (current)"
		}
		fmt.Fprintf(table, "%d%s\t%s\t%s\t%s\t%d\t%s\n", revision.Number(set), mark, set.Name, set.Spec.Template.Spec.Class.Name,
			duration.HumanDuration(now.Sub(set.CreationTimestamp.Time)), len(f.Of(set)), cause(set))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("writing the history: %w", err)
	}
	return nil
}

func cause(set *v1alpha1.MachineSet) string {
	return cmp.Or(report.Printable(set.Annotations[annotationCause]), "<none>")
}

// PrintRevision prints the template of one revision as YAML.
func PrintRevision(out io.Writer, f Facts, number int64) error {
	set, err := find(f, number)
	if err != nil {
		return err
	}
	template := set.Spec.Template.DeepCopy()
	delete(template.Labels, v1alpha1.DefaultMachineDeploymentUniqueLabelKey)
	text, err := yaml.Marshal(template)
	if err != nil {
		return fmt.Errorf("writing the template: %w", err)
	}
	_, err = fmt.Fprintf(out, "# Revision %d of machine deployment %s/%s, machine set %s, changed because of: %s\n%s",
		number, f.Deployment.Namespace, f.Deployment.Name, set.Name, cause(set), text)
	if err != nil {
		return fmt.Errorf("writing the template: %w", err)
	}
	return nil
}
