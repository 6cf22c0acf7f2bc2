package takeover

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
)

// accepted are the differences between our writes and MCM's that do not matter to readers of the objects,
// including MCM. Each is a path below a kind.
var accepted = map[string]string{
	"MachineSet status.selector":                                                              "ours: for the scale subresource; pruned under MCM's own CRDs",
	"MachineDeployment status.selector":                                                       "ours: for the scale subresource; pruned under MCM's own CRDs",
	"MachineSet status.lastOperation":                                                         "holds a time only, which is not compared",
	"Node status.conditions.lastHeartbeatTime":                                                byKubelet,
	"Node status.conditions.lastTransitionTime":                                               byKubelet,
	"Machine status.conditions.lastHeartbeatTime":                                             byKubelet,
	"Machine status.conditions.lastTransitionTime":                                            byKubelet,
	"MachineDeployment metadata.annotations.kubectl.kubernetes.io/last-applied-configuration": "written by the kubectl of the recording",
}

// byKubelet: a node's conditions come from its kubelet, which is another one here. In the recordings, some have
// times, and some have none.
const byKubelet = "written by the kubelet"

// Differences that are accepted in some stories only.
const (
	// priorityAtOnce: we set the priority of a Machine when it is created, MCM when its VM exists.
	priorityAtOnce = "Machine metadata.annotations." + v1alpha1.AnnotationKeyMachinePriority
	// historyOfItself: when MCM scales the only MachineSet, it adds that MachineSet's own revision to the
	// history, which should contain earlier revisions.
	historyOfItself = "MachineSet metadata.annotations." + v1alpha1.AnnotationKeyRevisionHistory
)

var (
	// spoken is our message about a drain before the text by which MCM recognizes the step.
	spoken   = regexp.MustCompile(`Draining, waiting for [^"]*\. (Initiate node drain)`)
	duration = regexp.MustCompile(`\b(?:\d+h)?(?:\d+m)?\d+(?:\.\d+)?(?:ms|µs|s)\b`)
	// conditions are for people only, and MCM formats them as Go values.
	conditions = regexp.MustCompile(`Node [cC]onditions: [^"]*`)
	// timeout is a duration, which MCM parses as a number of minutes.
	timeout = regexp.MustCompile(`(since last T) minutes`)
	expiry  = regexp.MustCompile(`(preserved until )[^".]*`)
	anyTime = regexp.MustCompile(`[tT]ime$|timeAdded|creationTimestamp|deletionTimestamp`)
)

// essence returns the content of a MachineDeployment's objects by kind and name, without random names, times and
// numbers. Machines of one MachineSet with the same content are merged and counted.
func essence(t *testing.T, objects []*unstructured.Unstructured, deployment string, also []string) map[string]any {
	t.Helper()
	names := randomNames(objects, deployment)
	texts := map[string][]string{} // sorted by text, so that names do not matter
	for _, object := range objects {
		kind := object.GetKind()
		if of(object.GetName()) != deployment || !slices.Contains(order[2:], kind) || slices.Contains(also, kind) {
			continue
		}
		fields, ok := strip(object.DeepCopy().Object, kind, "", also).(map[string]any)
		if !ok {
			t.Fatalf("%s %s has no content", kind, object.GetName())
		}
		encoded, err := json.Marshal(fields)
		must(t, err)
		key := names.replace(kind + " " + object.GetName())
		texts[key] = append(texts[key], plain(names.replace(string(encoded))))
	}
	output := map[string]any{}
	for key, all := range texts {
		output["how many "+key] = len(all)
		slices.Sort(all)
		for i, text := range slices.Compact(all) {
			var value any
			must(t, json.Unmarshal([]byte(text), &value))
			output[key+strings.Repeat(", another", i)] = value
		}
	}
	return output
}

// random maps random names to placeholders.
type random map[string]string

func randomNames(objects []*unstructured.Unstructured, deployment string) random {
	names := random{}
	for _, object := range objects {
		if object.GetKind() == "MachineSet" && of(object.GetName()) == deployment {
			revision := object.GetAnnotations()[v1alpha1.AnnotationKeyRevision]
			names[object.GetName()] = deployment + "-r" + revision
			names[object.GetLabels()[v1alpha1.DefaultMachineDeploymentUniqueLabelKey]] = "hash" + revision
		}
	}
	return names
}

// replace replaces the random names, and those of Machines, which begin with them.
func (names random) replace(text string) string {
	longestFirst := slices.SortedFunc(maps.Keys(names), func(a, b string) int { return len(b) - len(a) })
	for _, name := range longestFirst {
		text = regexp.MustCompile(regexp.QuoteMeta(name)+`(-[a-z0-9]{5})?\b`).ReplaceAllStringFunc(text, func(was string) string {
			if was == name {
				return names[name]
			}
			return names[name] + "-#"
		})
	}
	return text
}

// plain removes text that is for people only.
func plain(text string) string {
	text = expiry.ReplaceAllString(spoken.ReplaceAllString(text, "$1"), "${1}T")
	text = timeout.ReplaceAllString(duration.ReplaceAllString(text, "T"), "$1")
	return conditions.ReplaceAllString(text, "Node conditions: C")
}

// strip removes random values, values that the API server sets, and accepted differences.
func strip(value any, kind, path string, also []string) any {
	fields, ok := value.(map[string]any)
	if !ok {
		if list, ok := value.([]any); ok {
			for i := range list {
				list[i] = strip(list[i], kind, path, also)
			}
			list = slices.DeleteFunc(list, leavesLoadBalancers)
			slices.SortFunc(list, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
			return list
		}
		return value
	}
	for key, field := range fields {
		below := strings.TrimPrefix(path+"."+key, ".")
		random := slices.Contains([]string{"uid", "resourceVersion", "generation", "observedGeneration", "managedFields", "namespace"}, key)
		if _, minded := accepted[kind+" "+below]; minded || slices.Contains(also, kind+" "+below) || random {
			delete(fields, key)
			continue
		}
		if anyTime.MatchString(key) && field != nil {
			field = "T" // only its presence is compared
		}
		if field = strip(field, kind, below, also); field == nil {
			delete(fields, key)
		} else {
			fields[key] = field
		}
	}
	if len(fields) == 0 {
		return nil // empty objects, of which our types write some
	}
	return fields
}

// leavesLoadBalancers reports whether a value is the taint of a drained node that this version of MCM does not set.
func leavesLoadBalancers(value any) bool {
	fields, ok := value.(map[string]any)
	return ok && fields["key"] == v1alpha1.TaintKeyToBeDeleted
}

// live reads all objects of the fleet, whose nodes are those that its provider has created.
func (f *fleet) live() []*unstructured.Unstructured {
	t, e := f.t, f.Env
	t.Helper()
	made, _ := f.provider.did()
	var objects []*unstructured.Unstructured
	for _, kind := range order {
		list := &unstructured.UnstructuredList{}
		version := v1alpha1.SchemeGroupVersion
		if kind == "Node" || kind == "Secret" {
			version.Group, version.Version = "", "v1"
		}
		list.SetGroupVersionKind(version.WithKind(kind + "List"))
		var options []client.ListOption
		if kind != "Node" {
			options = append(options, client.InNamespace(e.Namespace))
		}
		must(t, e.Client.List(t.Context(), list, options...))
		for i := range list.Items {
			if kind != "Node" || slices.Contains(made, list.Items[i].GetName()) {
				objects = append(objects, &list.Items[i])
			}
		}
	}
	return objects
}

// fleet is a fleet whose objects we create like MCM's.
type fleet struct {
	*env.Env
	t          *testing.T
	deployment *v1alpha1.MachineDeployment
	provider   *provider
	gate       *gate
}

// begin creates one MachineDeployment of a recording, with its class and Secret, and starts our manager. The
// provider is prepared before.
func begin(t *testing.T, recording, deployment string, prepare ...func(*provider)) *fleet {
	t.Helper()
	f := declare(t, recording, deployment, prepare...)
	run(t, f.Env, f.provider, f.gate)
	return f
}

// declare is like begin, without our manager.
func declare(t *testing.T, recording, deployment string, prepare ...func(*provider)) *fleet {
	t.Helper()
	e := env.New(t)
	f := &fleet{Env: e, t: t, provider: newProvider(e), gate: &gate{}}
	for _, change := range prepare {
		change(f.provider)
	}
	for _, object := range read(t, path(recording), e.Namespace, "") {
		if slices.Contains([]string{"Secret", "MachineClass"}, object.GetKind()) {
			clean := &unstructured.Unstructured{Object: object.Object}
			clean.SetResourceVersion("")
			clean.SetUID("")
			clean.SetFinalizers(nil)
			must(t, e.Client.Create(t.Context(), clean))
		}
		if object.GetKind() == "MachineDeployment" && object.GetName() == deployment {
			f.deployment = &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: deployment}}
			spec, err := json.Marshal(object.Object["spec"])
			must(t, err)
			must(t, json.Unmarshal(spec, &f.deployment.Spec))
		}
	}
	must(t, e.Client.Create(t.Context(), f.deployment))
	t.Cleanup(func() { // when the manager has stopped
		made, _ := f.provider.did()
		for _, name := range made {
			dropNode(t, e, name)
		}
	})
	return f
}

func path(recording string) string {
	return "../../../api/machine/v1alpha1/testdata/mcm/" + recording + ".json"
}

// change applies a user's change.
func (f *fleet) change(merge string) {
	f.t.Helper()
	must(f.t, f.Client.Patch(f.t.Context(), f.deployment, client.RawPatch(types.MergePatchType, []byte(merge))))
}

// machines returns the Machines of the fleet by name.
func (f *fleet) machines() []v1alpha1.Machine {
	f.t.Helper()
	machines := &v1alpha1.MachineList{}
	must(f.t, f.Client.List(f.t.Context(), machines, client.InNamespace(f.Namespace)))
	return machines.Items
}

// same waits until our objects are those of MCM at the moment of a recording, except for differences that are
// always accepted, and for those accepted here, which may include all objects of a kind.
func (f *fleet) same(recording string, also ...string) {
	f.t.Helper()
	f.sameBut(recording, func([]*unstructured.Unstructured) {}, also...)
}

// sameBut is like same, with a recording that is first converted to our equivalent.
func (f *fleet) sameBut(recording string, instead difference, also ...string) {
	f.t.Helper()
	compared.Store(moment{recording, f.deployment.Name}, true)
	recorded := read(f.t, path(recording), f.Namespace, "")
	instead(slices.DeleteFunc(slices.Clone(recorded), func(object *unstructured.Unstructured) bool {
		return of(object.GetName()) != f.deployment.Name
	}))
	want := essence(f.t, recorded, f.deployment.Name, also)
	diff := "nothing was compared"
	ok := gomega.NewGomega(func(string, ...int) {}).Eventually(func() string {
		diff = cmp.Diff(want, essence(f.t, f.live(), f.deployment.Name, also))
		return diff
	}).WithTimeout(waitTimeout).WithPolling(300 * time.Millisecond).Should(gomega.BeEmpty())
	if !ok {
		f.t.Fatalf("%s: MCM's - ours +\n%s", recording, diff)
	}
}
