package crash

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Builds that have a wrong view of the world when they start, and a correct one afterwards. The first manager of
// a run starts when there is nothing to see.
const (
	// overlooks does not see Machines that were created recently.
	overlooks fault = "overlooks"
	// boasts considers all desired Machines of a MachineSet available.
	boasts fault = "boasts"
	// unmarks does not see which Machines were marked for deletion.
	unmarks fault = "unmarks"
	// thaws does not see that a MachineSet is frozen.
	thaws fault = "thaws"
	// forgets does not see for which MillwrightMachines a VM may exist, unless the provider ID is known.
	forgets fault = "forgets"
)

// aMoment is the age up to which overlooks does not see objects, in addition to the start-up time of the process.
// On a busy machine, all earlier objects would otherwise be older. Creation times have a resolution of one
// second.
const aMoment = 3 * time.Second

var (
	processBegan = time.Now()
	startTook    = sync.OnceValue(func() time.Duration { return time.Since(processBegan) })
)

// firstLook is what a build sees wrongly: for a resource, it changes an object, or reports that it is not seen.
type firstLook struct {
	next     http.RoundTripper
	resource string
	see      func(object *unstructured.Unstructured) (seen bool)
}

// firstLooks contains the builds with a wrong first view.
var firstLooks = map[fault]firstLook{
	overlooks: {resource: "machines", see: func(machine *unstructured.Unstructured) bool {
		return time.Since(machine.GetCreationTimestamp().Time) > aMoment+startTook()
	}},
	boasts: {resource: "machinesets", see: func(set *unstructured.Unstructured) bool {
		asked, _, _ := unstructured.NestedFloat64(set.Object, "spec", "replicas")
		_ = unstructured.SetNestedField(set.Object, asked, "status", "availableReplicas") // a map, according to the CRD
		return true
	}},
	unmarks: {resource: "machines", see: func(machine *unstructured.Unstructured) bool {
		without(machine, v1alpha1.AnnotationKeyMachinePriority)
		without(machine, v1alpha1.AnnotationKeyMarkedForDeletionTime)
		return true
	}},
	thaws: {resource: "machinesets", see: func(set *unstructured.Unstructured) bool {
		labels := set.GetLabels()
		delete(labels, v1alpha1.LabelKeyFreeze)
		set.SetLabels(labels)
		return true
	}},
	forgets: {resource: "millwrightmachines", see: func(infra *unstructured.Unstructured) bool {
		without(infra, infrav1.AnnotationCreationBegun)
		return true
	}},
}

func without(object client.Object, annotation string) {
	annotations := object.GetAnnotations()
	delete(annotations, annotation)
	object.SetAnnotations(annotations)
}

// RoundTrip implements http.RoundTripper.
func (f firstLook) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/"+f.resource) {
		return f.next.RoundTrip(r)
	}
	r = r.Clone(r.Context())
	r.Header.Set("Accept", readable(r.Header.Get("Accept")))
	response, err := f.next.RoundTrip(r)
	if err != nil || response.StatusCode != http.StatusOK {
		return response, err
	}
	if r.URL.Query().Get("watch") == "" {
		return f.list(response)
	}
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		f.watch(response)
	}
	return response, nil
}

// readable removes all types but JSON from an Accept header.
func readable(accept string) string {
	kinds := strings.Split(accept, ",")
	return strings.Join(slices.DeleteFunc(kinds, func(kind string) bool { return strings.Contains(kind, "protobuf") }), ",")
}

// list changes the items of a list.
func (f firstLook) list(response *http.Response) (*http.Response, error) {
	defer response.Body.Close()
	list := map[string]any{}
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
		return nil, err
	}
	items, _ := list["items"].([]any)
	list["items"] = slices.DeleteFunc(items, func(item any) bool { return !f.sees(item) })
	text, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	response.Header.Del("Content-Length")
	return response, nil
}

func (f firstLook) sees(item any) bool {
	object, isObject := item.(map[string]any)
	return !isObject || f.see(&unstructured.Unstructured{Object: object})
}

// watch changes the initial events of a watch.
func (f firstLook) watch(response *http.Response) {
	source := response.Body
	reader, writer := io.Pipe()
	response.Body = readCloser{reader, source}
	go func() { _ = writer.CloseWithError(f.copyEvents(writer, source)) }() // never fails
}

// readCloser reads from one side of a pipe, and closes what feeds the other side.
type readCloser struct {
	*io.PipeReader
	source io.Closer
}

// Close implements io.Closer.
func (c readCloser) Close() error {
	_ = c.PipeReader.Close() // never fails
	return c.source.Close()
}

// copyEvents forwards a watch. A bookmark marks the end of the objects that existed when it started.
func (f firstLook) copyEvents(to io.Writer, source io.Reader) error {
	decoder, encoder := json.NewDecoder(source), json.NewEncoder(to)
	for begun := false; ; {
		var event struct {
			Type   string         `json:"type"`
			Object map[string]any `json:"object"`
		}
		if err := decoder.Decode(&event); err != nil {
			return err
		}
		if event.Type == "BOOKMARK" {
			mark := unstructured.Unstructured{Object: event.Object}
			begun = begun || mark.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
		} else if !begun && !f.sees(event.Object) {
			continue
		}
		if err := encoder.Encode(event); err != nil {
			return err
		}
	}
}
